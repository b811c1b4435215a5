"""Write the page again and again while runs go on. The page reloads itself; there is no server."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.errors import RunError
from spherefed.report.page import render_page, write_text
from spherefed.report.reports import read_report
from spherefed.report.status import Status, read_status

INTERVAL = 5.0
"""Seconds between two pages."""
GRACE = 60.0
"""Seconds to wait for further runs when all are finished: a comparison starts its runs one after the other."""


@dataclass(frozen=True, slots=True)
class Written:
    """A page was written; without a status there is no run yet."""

    page: Path
    status: Status | None


def watch_page(
    runs: Sequence[Path],
    out: Path,
    *,
    interval: float = INTERVAL,
    grace: float = GRACE,
    targets: Sequence[float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Written]:
    """Write the page every `interval` seconds; yield after each. The last page no longer reloads itself.

    Ends when all runs are finished and no other run has begun for `grace` seconds. Stopping the iteration, or Ctrl-C,
    also writes a last page.
    """
    finished_since: float | None = None
    written = False
    try:
        while True:
            status = _write(runs, out, targets, max(round(interval), 1))
            written = written or status is not None
            yield Written(out, status)
            if status is None or not status.all_finished:
                finished_since = None
            else:
                finished_since = clock() if finished_since is None else finished_since
                if clock() - finished_since >= grace:
                    return
            sleep(interval)
    finally:
        if written:
            _write(runs, out, targets, None)


def _write(
    runs: Sequence[Path], out: Path, targets: Sequence[float] | None, reload_seconds: int | None
) -> Status | None:
    """Write the page; None if there is no run yet."""
    try:
        report = read_report(runs, unfinished=True)
        status = read_status(report)
        shown = None if reload_seconds is None and status.all_finished else status
        text = render_page(report, targets=targets, status=shown, reload_seconds=reload_seconds)
    except RunError:
        if _has_run(runs):
            return _retry(runs, out, targets, reload_seconds)
        return None
    write_text(text, out)
    return status


def _retry(
    runs: Sequence[Path], out: Path, targets: Sequence[float] | None, reload_seconds: int | None
) -> Status | None:
    """A file can be read while it is replaced, so a damaged file is read a second time before it is an error."""
    time.sleep(0.2)
    report = read_report(runs, unfinished=True)
    status = read_status(report)
    write_text(render_page(report, targets=targets, status=status, reload_seconds=reload_seconds), out)
    return status


def _has_run(runs: Sequence[Path]) -> bool:
    return any(run.is_dir() and next(run.rglob("experiment.json"), None) is not None for run in runs)
