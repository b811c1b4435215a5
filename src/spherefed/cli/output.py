"""What commands print: tables, progress, and how to go on after Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

WIDE = 120
"""Columns where there is no terminal to ask."""
LINES_EVERY = 25
"""Rounds between lines of progress where there is no terminal."""


def print_summary(runs: list[Path], *, markdown: bool = False) -> bool:
    """The table of clients' own models, if there are any, and that of the global one; whether a page can be made.

    Where examples are pooled there is no test set but the clients' own.
    """
    from rich.console import Console

    from spherefed.evaluation import GLOBAL_TEST, LOCAL_TEST_BY_CLIENTS
    from spherefed.report import personal, tables
    from spherefed.report.summary import summarize

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge at which to wrap
        console = Console(width=WIDE)

    def show(content: tables.Cells, caption: str) -> None:
        if markdown:
            click.echo(tables.markdown_cells(content, caption))
        else:
            console.print(tables.rich_cells(content, caption))

    tested_globally = personal.tested_globally(runs)
    if rows := personal.personal_rows(runs):
        show(personal.personal_cells(rows), personal.CAPTION)
        if not tested_globally:
            return False
    summary = summarize(runs, GLOBAL_TEST if tested_globally else LOCAL_TEST_BY_CLIENTS)
    show(tables.cells(summary), tables.CAPTION)
    for note in () if markdown else summary.notes:
        console.print(f"note: {note}", style="dim", highlight=False)
    return tested_globally


@contextmanager
def show_progress(total: int) -> "Iterator[Callable[..., None]]":
    """A live bar on a terminal, a line every so often elsewhere; either way on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    done = 0
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, news="")

        def advance(what: str, progress: Any, completed: int | None = None) -> None:
            nonlocal done
            done = done + 1 if completed is None else completed
            news = f"loss {progress.loss:.4f}"
            if progress.accuracy is not None:
                news += f", accuracy {progress.accuracy:.2%}"
            bar.update(task, completed=done, description=what, news=news)
            last = progress.index + 1 == progress.rounds
            if not console.is_terminal and (last or (progress.index + 1) % LINES_EVERY == 0):
                click.echo(f"{what}: round {progress.index + 1} of {progress.rounds}, {news}", err=True)

        yield advance


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """On Ctrl-C say how to go on, if there is something to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        if any(out.glob("**/checkpoint.safetensors")):
            click.echo(f"the last whole round is saved; the same command with --out {out} --resume goes on", err=True)
        raise
