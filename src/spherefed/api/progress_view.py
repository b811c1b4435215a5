"""What a display of progress shows: rounds done, clients done within rounds, and an estimate of the time left.

The loop reports finished rounds; what happens within a round is read from the fleets' `Activity` whenever the display
is drawn. Nothing here draws by itself: `progress` does.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spherefed.engines.activity import IDLE, PHASES, TRAINING, Activity, read_activity
from spherefed.experiment import Experiment
from spherefed.runs.jobs import Job, Running, Watch
from spherefed.runs.runner import Progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

WIDE = 100
"""Columns from which words are written in full."""
LABEL_WIDTH = 28
"""Columns of the name of a run; longer names are cut."""


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
        times = _clock_time(self._clock() - self._began) + (f", {_clock_time(left)} left" if left else "")
        parts = [f"{self._rounds(self.rounds_done()).strip()}, {times}"]
        for out, running in list(self.watch.items()):
            activity = running.activity
            of = f"/{running.job.experiment.rounds}" if activity.phase == TRAINING else ""
            words = f"{_phase(activity)}{of}{_clients(activity, wide=True)}"
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
        times = _clock_time(self._clock() - self._began)
        if done < self.total:
            times += f", {'-:--:--' if left is None else _clock_time(left)} left"
        bar = ProgressBar(total=max(self.total, 1), completed=done if self.total else 1)
        grid.add_row(self.title, bar, self._rounds(done), times)
        for out, running in list(self.watch.items()):
            label = "" if running.job.label == self.title else _short(running.job)
            phase = ProgressBar(total=1.0, completed=running.activity.fraction)
            doing = f"{_phase(running.activity)}{_clients(running.activity, wide=wide)}"
            grid.add_row(label, phase, doing, self._remark(out, running, wide=wide))
        yield grid

    def _rounds(self, done: float) -> str:
        """An experiment of one upload has none."""
        return f"{_counted(int(done), self.total)} rounds" if self.total else "no rounds"

    def _remark(self, out: Path, running: Running, *, wide: bool) -> str:
        """In training how well the run does, after it when the phase will be over."""
        activity = running.activity
        if activity.phase in (IDLE, TRAINING):
            return self.status(out, wide=wide)
        fraction = activity.fraction
        if not fraction or out not in self._phase_began:
            return ""
        _, began = self._phase_began[out]
        return f"{_clock_time((self._clock() - began) * (1 - fraction) / fraction)} left"


def _short(job: Job) -> str:
    """The label with a shorter name, if it is too long: the seed is worth more than the end of the name."""
    room = LABEL_WIDTH - (len(job.label) - len(job.name))
    return job.label if len(job.name) <= room else f"{job.name[: room - 1]}…{job.label[len(job.name) :]}"


def _phase(activity: Activity) -> str:
    return f"round {activity.round + 1}" if activity.phase == TRAINING else PHASES[activity.phase]


def _clients(activity: Activity, *, wide: bool) -> str:
    if activity.phase == IDLE:
        return ""
    if wide:
        return f": {activity.clients_done}/{activity.clients} clients"
    return f": {_counted(activity.clients_done, activity.clients)}"


def _counted(done: int, total: int) -> str:
    """As wide at the end as in the beginning, so that nothing jumps."""
    return f"{done:>{len(str(total))}}/{total}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
