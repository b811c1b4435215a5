"""Draw the progress of runs: live bars in a terminal or a notebook, otherwise lines."""

import html
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spherefed.api.progress_view import ProgressView

REFRESHES_PER_SECOND = 4
SECONDS_PER_LINE = 10.0
"""Time between two lines if there is no terminal."""
SECONDS_PER_LOOK = 0.5
"""Time between two looks at what the clients do if there is no terminal."""


@contextmanager
def show_progress(
    title: str,
    total: int,
    *,
    completed: Mapping[Path, int] | None = None,
    bars: bool = True,
    lines: bool = False,
) -> Iterator[ProgressView]:
    """Show a view of `total` rounds on standard error while the block runs.

    `bars` draws live bars in a terminal or a notebook; `lines` writes one line every 10 seconds where there is neither.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    view = ProgressView(title, total, completed=completed)
    if console.is_jupyter and bars:
        with _thread(_update_output, view):
            yield view
    elif console.is_terminal and bars:
        with Live(
            get_renderable=lambda: view,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # results in a file or a pipe stay there
        ):
            yield view
    elif lines and not console.is_terminal:
        with _thread(_write_lines, view):
            yield view
    else:
        yield view


@contextmanager
def _thread(target: Callable[[ProgressView, threading.Event], None], view: ProgressView) -> Iterator[None]:
    """Run a function of the view beside the block; the event tells it that the block is over."""
    over = threading.Event()
    thread = threading.Thread(target=target, args=(view, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _update_output(view: ProgressView, over: threading.Event) -> None:
    """One output of a notebook cell that changes; rich itself would need ipywidgets for that."""
    from IPython.display import display

    shown, ended = None, False
    while not ended:
        ended = over.wait(SECONDS_PER_LOOK)
        line = view.line()
        bar = f'<progress value="{view.part_done():.3f}" max="1"></progress>'
        content = {"text/plain": line, "text/html": f"{bar} {html.escape(line)}"}
        if shown is None:
            shown = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            shown.update(content, raw=True)


def _write_lines(view: ProgressView, over: threading.Event) -> None:
    looks_per_line, looks, ended = round(SECONDS_PER_LINE / SECONDS_PER_LOOK), 0, False
    while not ended:
        ended = over.wait(SECONDS_PER_LOOK)
        looks += 1
        view.observe()
        lines = view.last_rounds() + ([view.line()] if looks % looks_per_line == 0 and not ended else [])
        for line in lines:
            print(line, file=sys.stderr, flush=True)
