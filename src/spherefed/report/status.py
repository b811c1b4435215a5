"""What runs are doing now, from their run directories alone: finished, running or stopped, how far, how much longer.

A run that goes on holds a lock on its directory. The lock is only looked up in the system's table of locks: taking it,
even for a moment, could stop a run that is just starting.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spherefed.engines.activity import PHASES, TRAINING, read_activity
from spherefed.report.blocks import Bar, Bars, Block, Section, Table, Text
from spherefed.report.clients import client_table
from spherefed.report.groups import Group
from spherefed.report.reports import Report
from spherefed.report.run_files import Run
from spherefed.report.summary import GLOBAL_TEST
from spherefed.report.tables import human_seconds

LOCKS = Path("/proc/locks")
RECENT = 180.0
"""Without a table of locks, a run counts as running if it has written anything within so many seconds."""
LAST_ROUNDS = 10
"""Rounds whose mean duration gives the remaining time."""

State = Literal["finished", "running", "stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """One run at one moment."""

    run: Run
    method: str
    state: State
    phase: str
    """What clients are doing now; empty if that is not known."""
    clients_done: int
    clients: int
    """Clients that were asked in the current round or phase; 0 if that is not known."""
    within: float
    """How much of the current round is done, from 0 to 1."""
    seconds_left: float | None
    """Of the rounds; None before the first round and after the last."""

    @property
    def fraction(self) -> float:
        if self.state == "finished":
            return 1.0
        done = len(self.run.lines)
        return min((done + self.within) / max(self.run.rounds, 1), 0.99)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """All runs of a page at one moment."""

    runs: tuple[RunStatus, ...]
    written: str
    """When the page was written, in local time."""

    @property
    def all_finished(self) -> bool:
        return all(each.state == "finished" for each in self.runs)


def read_status(report: Report, *, now: float | None = None) -> Status:
    """The status of the runs of a report."""
    moment = time.time() if now is None else now
    locked = _locked_inodes()
    found = [_status(group, run, locked, moment) for group in report.groups for run in group.runs]
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return Status(runs=tuple(found), written=written)


def status_section(status: Status) -> Section:
    """Progress bars of unfinished runs, and the sites of deployed ones."""
    going = [each for each in status.runs if each.state != "finished"]
    finished = len(status.runs) - len(going)
    left = [each.seconds_left for each in going if each.seconds_left is not None and each.state == "running"]
    parts = [f"{finished} of {len(status.runs)} runs are finished"]
    parts += [f"the rounds of the running ones end in about {human_seconds(max(left))}"] if left else []
    blocks: list[Block] = [Text(f"{'; '.join(parts)}. Written at {status.written}.")]
    if going:
        blocks.append(Bars([_bar(each) for each in going]))
    for each in going:
        if each.run.sites:
            blocks.append(Table(client_table(each.run), site_notes(each.run), title=f"Sites of {each.run.name}"))
    return Section("status", "Status", blocks)


def site_notes(run: Run) -> str:
    """Which sites did not take part in the last round, and why."""
    if not run.lines:
        return ""
    last = run.lines[-1]
    missing = []
    for client, site in run.sites.items():
        if client in last.examples:
            continue
        seen = max((line.index for line in run.lines if client in line.examples), default=-1)
        causes = [each.cause for each in run.rejections if each.client == client and each.round == last.index]
        missing.append(f"{site} missing since round {seen + 2}" + (f" ({causes[-1]})" if causes else ""))
    took_part = len(run.sites) - len(missing)
    return (
        f"{took_part} of {len(run.sites)} sites took part in the last round; {'; '.join(missing)}." if missing else ""
    )


def seconds_left(run: Run, within: float) -> float | None:
    """Remaining seconds of the rounds, from the last rounds and the part of the current one that is done."""
    if not run.lines or len(run.lines) >= run.rounds:
        return None
    recent = [line.seconds for line in run.lines[-LAST_ROUNDS:]]
    return max(run.rounds - len(run.lines) - within, 0.0) * sum(recent) / len(recent)


def _status(group: Group, run: Run, locked: set[int] | None, now: float) -> RunStatus:
    state: State = "finished" if run.finished else "running" if _is_running(run.path, locked, now) else "stopped"
    activity = read_activity(run.path) if state == "running" else None
    # Between two rounds the numbers are still those of the round before.
    is_past = activity is not None and activity.phase == TRAINING and activity.round < len(run.lines)
    if activity is None or is_past or not activity.clients:
        left = seconds_left(run, 0.0) if state == "running" else None
        return RunStatus(
            run=run, method=group.name, state=state, phase="", clients_done=0, clients=0, within=0.0, seconds_left=left
        )
    within = activity.fraction if activity.phase == TRAINING and activity.round == len(run.lines) else 0.0
    return RunStatus(
        run=run,
        method=group.name,
        state=state,
        phase=PHASES[activity.phase] if 0 <= activity.phase < len(PHASES) else "",
        clients_done=activity.clients_done,
        clients=activity.clients,
        within=within,
        seconds_left=seconds_left(run, within),
    )


def _bar(status: RunStatus) -> Bar:
    run = status.run
    done = len(run.lines)
    words = [f"round {min(done + 1, run.rounds)} of {run.rounds}" if run.rounds else "no rounds"]
    if status.phase and status.phase != "training":
        words[0] = f"{status.phase} after {done} rounds"
    if status.clients:
        words.append(f"{status.clients_done} of {status.clients} clients")
    if run.lines:
        loss = run.lines[-1].loss
        words += [] if loss is None else [f"loss {loss:.4g}"]
        accuracies = [line.accuracy[GLOBAL_TEST] for line in run.lines if GLOBAL_TEST in line.accuracy]
        words += [f"accuracy {100 * accuracies[-1]:.2f} %"] if accuracies else []
    words += [f"{len(run.rejections)} rejected replies"] if run.rejections else []
    if status.state == "stopped":
        words.append("nothing runs here; continue with --resume")
    remaining = "" if status.seconds_left is None else f", {human_seconds(status.seconds_left)} left"
    return Bar(
        label=f"{status.method}, seed {run.seed}",
        state=status.state,
        state_text=status.state + remaining,
        fraction=round(status.fraction, 4),
        text=", ".join(words),
    )


def _is_running(path: Path, locked: set[int] | None, now: float) -> bool:
    if locked is not None:
        return path.stat().st_ino in locked
    newest: Sequence[float] = [file.stat().st_mtime for file in path.iterdir() if file.is_file()]
    return now - max(newest, default=0.0) < RECENT


def _locked_inodes() -> set[int] | None:
    """Inodes of files and folders with a lock on this machine; None if the system has no such table."""
    try:
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 4242 08:01:131090 0 EOF
    fields = [line.split() for line in lines]
    return {int(each[5].rpartition(":")[2]) for each in fields if len(each) >= 8 and each[1] == "FLOCK"}
