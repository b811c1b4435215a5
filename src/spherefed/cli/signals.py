"""SIGTERM ends a command as Ctrl-C does: the last whole round is saved first. A second signal ends it at once.

Python handles signals between two instructions of the main thread, which may be inside a long computation. A thread
therefore watches the signals too: it ends the process after GRACE seconds, or with the second signal.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

GRACE = 8.0
"""Seconds to save a checkpoint and to end worker processes after the first signal."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Save the last whole round after Ctrl-C or SIGTERM, and print how to continue if there is a checkpoint."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        if any(out.glob("**/checkpoint.safetensors")):
            click.echo(
                f"the last checkpoint is saved; to continue, give the same command with --out {out} --resume", err=True
            )
        raise


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block, SIGTERM raises Terminated and Ctrl-C KeyboardInterrupt; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    before = {number: signal.signal(number, _raise) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # ends the thread
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _: object) -> None:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _watch(reader: int) -> None:
    """End the process GRACE seconds after the first signal, or with the second, unless the block ends before."""
    timer: threading.Timer | None = None
    while content := os.read(reader, 1):
        number = content[0]
        if number not in SIGNALS:
            continue
        if timer is not None:
            os._exit(128 + number)
        timer = threading.Timer(GRACE, os._exit, [128 + number])
        timer.daemon = True
        timer.start()
    if timer is not None:
        timer.cancel()
    os.close(reader)
