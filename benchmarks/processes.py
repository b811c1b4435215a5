"""A process and its descendants, read from /proc: CPU time, memory, end. Needs nothing but Python."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
USER, WAITED_SYSTEM, RESIDENT = 11, 14, 21
"""Positions in /proc/PID/stat, counted after the name, which may hold blanks."""


def descendants(root: int) -> dict[int, list[str]]:
    """Everything below `root`, with its line of /proc."""
    found: dict[int, list[str]] = {}
    frontier = [root]
    while frontier:
        with suppress(OSError):  # it has just ended
            for path in Path(f"/proc/{frontier.pop()}/task").glob("*/children"):
                for child in map(int, path.read_text().split()):
                    found[child] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    frontier.append(child)
    return found


def tree_cpu() -> float:
    """CPU seconds of this process and of all below it, those that have ended included."""
    ended = os.times()
    below = sum(sum(map(int, line[USER : WAITED_SYSTEM + 1])) for line in descendants(os.getpid()).values())
    return time.process_time() + ended.children_user + ended.children_system + below / TICKS


def tree_mb(root: int) -> float:
    """Resident now, of `root` and all below it; pages that processes share count once for each."""
    below = sum(int(line[RESIDENT]) for line in descendants(root).values())
    with suppress(OSError, IndexError):
        below += int(Path(f"/proc/{root}/statm").read_text().split()[1])
    return below * PAGE / 2**20


def highest_mb(pid: int) -> float:
    """The most that one process ever had resident."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def end(root: int) -> None:
    """Kill `root` and all below it."""
    for pid in [*descendants(root), root]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
