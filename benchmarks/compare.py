"""Ratios to the bare loop, interleaved: every contestant lives in its own process and works when it is its turn.

python benchmarks/compare.py overhead "bare,default,fedlab" --repetitions 5
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from contestants import NAMES, PEERS, Start, check, start
from environments import UnavailableError
from processes import descendants, end, highest_mb, tree_mb
from turns import Turn

PATIENCE = 600.0
"""Seconds for a turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A contestant's turns, and what it cost to begin."""

    turns: list[Turn]
    startup_cpu: float
    """Seconds from the start of the process to the end of its first round, less a steady round."""
    startup_wall: float
    peak_mb: float
    """Of the process tree."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A contestant that is not installed, or that failed."""

    cause: str


Outcome = Measured | NotMeasured


def contest(workload: str, names: list[str], repetitions: int) -> dict[str, Outcome]:
    """The named contestants on one workload."""
    from workloads import material_of
    from workloads import workload as by_name

    check(names)
    with tempfile.TemporaryDirectory(prefix="spherefed-bench-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        material = scratch / "material.pt"
        material_of(by_name(workload, scratch)).save(material)
        starts: dict[str, Start | NotMeasured] = {}
        for name in names:
            try:
                starts[name] = start(name, workload, material, scratch)
            except UnavailableError as error:
                starts[name] = NotMeasured(str(error))
        return compare(starts, repetitions)


def compare(starts: dict[str, Start | NotMeasured], repetitions: int, patience: float = PATIENCE) -> dict[str, Outcome]:
    """Every contestant's turns, taken one after the other, `repetitions` times over.

    They begin one after the other, so that nobody's start-up is slowed by another's. Who fails is out, and the others
    go on.
    """
    running: dict[str, _Process] = {}
    turns: dict[str, list[Turn]] = {name: [] for name in starts}
    failed: dict[str, NotMeasured] = {name: how for name, how in starts.items() if isinstance(how, NotMeasured)}
    try:
        for _ in range(repetitions):
            for name, how in starts.items():
                if isinstance(how, NotMeasured) or name in failed:
                    continue
                try:
                    if name not in running:
                        running[name] = _Process(how)
                    turns[name].append(running[name].ask(patience))
                except _FailedError as error:
                    failed[name] = NotMeasured(str(error))
    finally:
        for process in running.values():
            process.end()
    return {name: failed.get(name) or _measured(running[name], turns[name]) for name in starts}


def _measured(process: "_Process", turns: list[Turn]) -> Measured:
    return Measured(
        turns=turns,
        startup_cpu=turns[0].first_cpu - median(turn.cpu for turn in turns),
        startup_wall=turns[0].first_at - process.began - median(turn.wall for turn in turns),
        peak_mb=process.peak_mb,
    )


class _FailedError(Exception):
    """A contestant that gave no answer, with the cause in one line."""


class _Process:
    """A contestant that waits to be told to go."""

    def __init__(self, how: Start) -> None:
        self.began = time.monotonic()
        self.peak_mb = 0.0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        try:
            self._process = subprocess.Popen(
                how.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | how.environment,
            )
        except OSError as error:
            self._errors.close()
            raise _FailedError(str(error)) from error

    def ask(self, patience: float) -> Turn:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._watched(patience) as expired:
            try:
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # it has died: there will be no answer
            line = self._process.stdout.readline()
        if not line:
            raise _FailedError(f"no answer in {patience:g} s" if expired.is_set() else self._last_words())
        return Turn(**json.loads(line))

    @contextmanager
    def _watched(self, patience: float) -> Iterator[threading.Event]:
        """Memory looked at from outside five times a second; an end to the process that takes too long."""
        over, expired = threading.Event(), threading.Event()

        def watch() -> None:
            limit = time.monotonic() + patience
            while not over.wait(0.2):
                self.peak_mb = max(self.peak_mb, tree_mb(self._process.pid))
                if time.monotonic() > limit:
                    expired.set()
                    end(self._process.pid)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield expired
        finally:
            over.set()
            watcher.join()
            self.peak_mb = max(self.peak_mb, tree_mb(self._process.pid), highest_mb(self._process.pid))

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"ended with exit code {self._process.returncode}"

    def end(self) -> None:
        """Its input is closed, and it may go by itself; after that nothing of it is left."""
        below = [*descendants(self._process.pid)]
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(15)
        end(self._process.pid)
        for pid in below:
            end(pid)
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def table(outcomes: dict[str, Outcome]) -> str:
    """Medians of the ratios to the first contestant, turn by turn, with their spread; loss as proof of the work."""
    first = next(iter(outcomes.values()))
    if isinstance(first, NotMeasured):
        raise SystemExit(f"{next(iter(outcomes))}, which the others are compared with, failed: {first.cause}")
    lines = [
        "| program | CPU, ratio | lowest to highest | wall, ratio | lowest to highest | CPU ms per round "
        "| final loss | start-up s, CPU / wall | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in outcomes.items():
        title = PEERS.get(name, name)
        if isinstance(own, NotMeasured):
            lines.append(f"| {title} | not measured: {own.cause.replace('|', '/')} |  |  |  |  |  |  |  |")
            continue
        pairs = [*zip(own.turns, first.turns, strict=True)]
        cpu = sorted(mine.cpu / base.cpu for mine, base in pairs)
        wall = sorted(mine.wall / base.wall for mine, base in pairs)
        lines.append(
            f"| {title} | **{median(cpu):.2f}** | {cpu[0]:.2f} – {cpu[-1]:.2f} "
            f"| {median(wall):.2f} | {wall[0]:.2f} – {wall[-1]:.2f} "
            f"| {1e3 * median(turn.cpu for turn in own.turns):.2f} | {own.turns[-1].loss:.4f} "
            f"| {own.startup_cpu:.1f} / {own.startup_wall:.1f} | {own.peak_mb:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=["overhead", "compute"])
    parser.add_argument(
        "contestants", help=f"comma-separated, of {', '.join(NAMES)}; the first is what the others are compared with"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    print(table(contest(given.workload, given.contestants.split(","), given.repetitions)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
