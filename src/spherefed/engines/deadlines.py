"""A limit in time on what another process does."""

import threading
from collections.abc import Callable


class Deadline:
    """Calls a function, such as the kill of a process, if it is not cancelled in time; without seconds, never."""

    def __init__(self, seconds: float | None = None, expire: Callable[[], None] | None = None) -> None:
        self._expired = threading.Event()
        self._expire = expire
        self._timer: threading.Timer | None = None
        if seconds is not None:
            self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._run)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> bool:
        """From now on nothing is called; whether it was called already."""
        if self._timer is not None:
            self._timer.cancel()
        return self._expired.is_set()

    def _run(self) -> None:
        self._expired.set()
        if self._expire is not None:
            self._expire()
