"""Runs that are stopped by signals: `python -m support.stopping FOLDER` prints how each of them ended, as JSON.

Each way gets a process of its own, forked from one interpreter because importing torch takes seconds.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spherefed.cli import main as command_line
from spherefed.cli import signals
from spherefed.client import handle as client
from support.dying import experiment
from support.small import blobs, save_arrays


def never_returns(*_: Any, **__: Any) -> None:
    """Wait in C for a lock that this thread holds: no handler of Python runs meanwhile, and no signal ends it."""
    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def at_call(number: int, act: Callable[[], None]) -> Callable[..., Any]:
    """Train, but act first at the so-manieth call."""
    train, calls = client.train, 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return train(*args, **kwargs)

    return wrapped


def send(*numbers: int) -> Callable[[], None]:
    def act() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.2)  # the first handler has raised by then, unless the process is stuck

    return act


def stuck_after(*numbers: int) -> Callable[[], None]:
    """Signals come while the process is stuck."""

    def act() -> None:
        parent = os.getpid()
        if os.fork() == 0:
            for number in numbers:
                time.sleep(0.5)
                os.kill(parent, number)
            os._exit(0)
        never_returns()

    return act


def with_grace(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    def change() -> None:
        signals.GRACE = seconds
        act()

    return change


WAYS: dict[str, tuple[Callable[[], None], int]] = {
    "terminated": (send(signal.SIGTERM), 143),
    "interrupted": (send(signal.SIGINT), 130),
    "stuck, one signal": (with_grace(1.0, stuck_after(signal.SIGTERM)), 143),
    "stuck, two signals": (with_grace(600.0, stuck_after(signal.SIGTERM, signal.SIGTERM)), 143),
    "stuck, terminated and interrupted": (with_grace(600.0, stuck_after(signal.SIGTERM, signal.SIGINT)), 130),
}


def main(folder: Path) -> None:
    save_arrays(folder / "data.npz", blobs())
    (folder / "experiment.json").write_text(_as_json(folder))
    ends = {}
    for name, (act, _) in WAYS.items():
        child = os.fork()
        if child == 0:
            client.train = at_call(3 * 5 + 2, act)
            out = str(folder / name)
            sys.argv = ["spherefed", "run", str(folder / "experiment.json"), "--out", out, "--checkpoint-every", "100"]
            try:
                command_line()
            except SystemExit as stop:
                os._exit(stop.code if isinstance(stop.code, int) else 99)
            os._exit(98)
        began = time.monotonic()
        _, status = os.waitpid(child, 0)
        ends[name] = {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}
    print(json.dumps(ends))


def _as_json(folder: Path) -> str:
    from spherefed.experiment import experiment_to_json

    return experiment_to_json(experiment(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
