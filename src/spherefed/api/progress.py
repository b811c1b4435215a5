"""The progress of runs: rounds done, clients done within rounds, and an estimate of the time left.

The loop reports finished rounds; what happens within a round is read from the fleets' `Activity` whenever the display
is drawn: live bars in a terminal or a notebook, otherwise lines.
"""

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spherefed.api.progress_words import clients_of, clock_time, counted, is_solving, phase_of, short_label
from spherefed.engines.activity import IDLE, TRAINING, Activity, read_activity
from spherefed.experiment import Experiment
from spherefed.runs.jobs import Job, Running, Watch
from spherefed.runs.runner import Progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

REFRESHES_PER_SECOND = 4
SECONDS_PER_LINE = 10.0
"""Time between two lines if there is no terminal."""
SECONDS_PER_LOOK = 0.5
"""Time between two looks at what the clients do if there is no terminal."""
NO_ROUNDS = "no rounds"
"""In place of the number of rounds, if a head is solved without training."""
WIDE = 100
"""Columns from which words are written in full."""
LABEL_WIDTH = 28
"""Columns of the name of a run; longer names are cut."""


@contextmanager
def show_progress(
    title: str,
    total: int,
    *,
    completed: Mapping[Path, int] | None = None,
    bars: bool = True,
    lines: bool = False,
) -> Iterator["ProgressView"]:
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
def _thread(target: "Callable[[ProgressView, threading.Event], None]", view: "ProgressView") -> Iterator[None]:
    """Run a function of the view beside the block; the event tells it that the block is over."""
    over = threading.Event()
    thread = threading.Thread(target=target, args=(view, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _update_output(view: "ProgressView", over: threading.Event) -> None:
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


def _write_lines(view: "ProgressView", over: threading.Event) -> None:
    looks_per_line, looks, ended = round(SECONDS_PER_LINE / SECONDS_PER_LOOK), 0, False
    while not ended:
        ended = over.wait(SECONDS_PER_LOOK)
        looks += 1
        view.observe()
        lines = view.last_rounds() + ([view.line()] if looks % looks_per_line == 0 and not ended else [])
        for line in lines:
            print(line, file=sys.stderr, flush=True)


class ProgressView:
    """Rounds of one or more runs. A rich renderable with one bar for everything and one for each run in work."""

    def __init__(
        self,
        title: str,
        total: int,
        *,
        completed: Mapping[Path, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`completed` are rounds of runs, by directory, that were done before, in an interrupted command."""
        self.title, self.total = title, total
        self.watch: Watch = {}
        """The runs in work; whoever runs them keeps it up to date."""
        self._folders: set[Path] = set()
        """Those among them that run in another process: what they do is read from their run directories."""
        self._completed: dict[Path, float] = dict(completed or {})
        self._done_before = sum(self._completed.values())
        self._status: dict[Path, Progress] = {}
        self._trained: list[tuple[Path, Running]] = []
        self._clock = clock
        self._began = clock()
        self._first_work: float | None = None
        """When clients were first seen at work: loading data is no part of the estimate."""
        self._phase_began: dict[Path, tuple[tuple[int, int], float]] = {}

    def watch_run(self, experiment: Experiment, out: Path) -> Activity:
        """Show this run, outside of `run_jobs`; the runner keeps the result up to date."""
        running = self.watch[out] = Running(Job(name=experiment.name, experiment=experiment, out=out), Activity())
        return running.activity

    def watch_folder(self, experiment: Experiment, out: Path) -> None:
        """Show the run that another process keeps in this run directory."""
        self.watch_run(experiment, out)
        self._folders.add(out)

    def advance(self, out: Path, progress: Progress) -> None:
        """A round of the run in this directory is done."""
        self._completed[out], self._status[out] = progress.index + 1, progress
        if progress.index + 1 == progress.rounds:
            self._trained.append((out, self.watch[out]))

    def rounds_done(self) -> float:
        """Rounds of all runs, with the parts of rounds in work."""
        self.observe()
        return min(sum(self._completed.values()), float(self.total))

    def part_done(self) -> float:
        """Of all rounds, from 0 to 1; without rounds, of the clients' measuring."""
        if self.total:
            return self.rounds_done() / self.total
        parts = [running.activity.fraction for running in list(self.watch.values())]
        return sum(parts) / len(parts) if parts else 0.0

    def seconds_left(self) -> float | None:
        """Time for the rounds that are left, at the speed since the first clients; None before they are done."""
        done = self.rounds_done()
        if self._first_work is None or done <= self._done_before:
            return None
        return (self._clock() - self._first_work) * (self.total - done) / (done - self._done_before)

    def observe(self) -> None:
        """Note how far runs are and when phases begin; to be called a few times a second."""
        now = self._clock()
        for out in self._folders:
            if (found := read_activity(out)) is not None:
                self.watch[out] = replace(self.watch[out], activity=found)
        for out, running in list(self.watch.items()):
            activity = running.activity
            if activity.phase == IDLE:
                continue
            self._first_work = now if self._first_work is None else self._first_work
            key = (activity.phase, activity.round)
            if out not in self._phase_began or self._phase_began[out][0] != key:
                self._phase_began[out] = (key, now)
            if running.job.trained is None:  # runs that take over rounds have none of their own
                within = activity.fraction if activity.phase == TRAINING else 0.0
                self._completed[out] = max(self._completed.get(out, 0), activity.round + within)

    def last_rounds(self) -> list[str]:
        """One line for each run whose last round was done since the last call."""
        trained, self._trained = self._trained, []
        rounds = [(running.job.label, running.job.experiment.rounds, out) for out, running in trained]
        return [f"{label}: round {num} of {num}, {self.status(out)}" for label, num, out in rounds]

    def line(self) -> str:
        """Everything on one line, for a log."""
        left = self.seconds_left()
        times = clock_time(self._clock() - self._began) + (f", {clock_time(left)} left" if left else "")
        rounds = f"{int(self.rounds_done())}/{self.total} rounds" if self.total else NO_ROUNDS
        parts = [f"{rounds}, {times}"]
        for out, running in list(self.watch.items()):
            activity = running.activity
            of = f"/{running.job.experiment.rounds}" if activity.phase == TRAINING else ""
            words = f"{phase_of(running)}{of}{clients_of(running, wide=True)}"
            parts.append(f"{running.job.label}: {words}" + (f", {self.status(out)}" if out in self._status else ""))
        return "; ".join(parts)

    def status(self, out: Path, *, wide: bool = True) -> str:
        """Loss and accuracy of the last finished round of a run."""
        progress = self._status.get(out)
        if progress is None:
            return ""
        accuracy = "" if progress.accuracy is None else f", {'accuracy ' if wide else ''}{progress.accuracy:.2%}"
        return f"loss {progress.loss:.4f}{accuracy}"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator["Table"]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        wide = options.max_width >= WIDE
        left, done = self.seconds_left(), self.rounds_done()
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(no_wrap=True)
        times = clock_time(self._clock() - self._began)
        if done < self.total:
            times += f", {'-:--:--' if left is None else clock_time(left)} left"
        bar = ProgressBar(total=1.0, completed=self.part_done())
        rounds = f"{counted(int(done), self.total)} rounds" if self.total else NO_ROUNDS
        grid.add_row(self.title, bar, rounds, times)
        for out, running in list(self.watch.items()):
            label = "" if running.job.label == self.title else short_label(running.job, LABEL_WIDTH)
            phase = ProgressBar(total=1.0, completed=running.activity.fraction)
            doing = f"{phase_of(running)}{clients_of(running, wide=wide)}"
            grid.add_row(label, phase, doing, self._remark(out, running, wide=wide))
        yield grid

    def _remark(self, out: Path, running: Running, *, wide: bool) -> str:
        """In training how well the run does, after it when the phase will be over."""
        activity = running.activity
        if activity.phase in (IDLE, TRAINING):
            return self.status(out, wide=wide)
        fraction = activity.fraction
        if not fraction or is_solving(running) or out not in self._phase_began:
            return ""
        _, began = self._phase_began[out]
        return f"{clock_time((self._clock() - began) * (1 - fraction) / fraction)} left"
