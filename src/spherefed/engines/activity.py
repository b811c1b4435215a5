"""What a fleet is doing now: a few numbers that it writes and that a progress display reads.

Nothing is called back and nothing waits: whoever wants to show progress looks at the numbers whenever it likes, from
another thread, or from another process if they lie in shared memory (`multiprocessing`'s `RawValue(Activity)`). A run
also keeps them in a file of its directory (`published`), which `spherefed report --watch` reads.
"""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spherefed.messages import Evaluate, Measure, Reestimate, Request, Train

IDLE, TRAINING, REESTIMATION, CALIBRATION, EVALUATION, PERSONALIZATION = range(6)
PHASES = ("starting", "training", "re-estimation", "calibration", "evaluation", "personalization")
"""The names of the phases, by their numbers."""
ACTIVITY = "activity.bin"
"""The file in the directory of a run that goes on."""
_PHASE_OF = {Train: TRAINING, Reestimate: REESTIMATION, Measure: CALIBRATION, Evaluate: EVALUATION}


class Activity(ctypes.Structure):
    """The request that clients work on, and how many of them are done; written by one fleet."""

    _fields_ = (
        ("phase", ctypes.c_int64),
        ("round", ctypes.c_int64),
        ("clients", ctypes.c_int64),
        ("clients_done", ctypes.c_int64),
        ("examples", ctypes.c_int64),
        ("examples_done", ctypes.c_int64),
    )
    phase: int
    round: int
    clients: int
    """Clients that were asked."""
    clients_done: int
    examples: int
    """Examples of all clients that were asked: what the time is estimated from, because clients differ in size."""
    examples_done: int
    _copy: "mmap.mmap | None" = None
    """The file that holds the same numbers."""

    def begin(self, request: Request, clients: Sequence[int], parts: "Sequence[NDArray[np.int64]]") -> None:
        """Clients were asked; `parts` are the examples of each."""
        self.clients_done = self.examples_done = 0
        self.clients, self.examples = len(clients), sum(len(parts[client]) for client in clients)
        personalize = isinstance(request, Evaluate) and request.personalize
        self.phase, self.round = PERSONALIZATION if personalize else _PHASE_OF[type(request)], request.round
        if self._copy is not None:
            self._copy[:] = bytes(self)

    def advance(self, clients: Sequence[int], parts: "Sequence[NDArray[np.int64]]") -> None:
        """These clients have answered."""
        self.clients_done += len(clients)
        self.examples_done += sum(len(parts[client]) for client in clients)
        if self._copy is not None:
            self._copy[:] = bytes(self)

    def reset(self) -> None:
        """Nothing is being done."""
        self.phase = self.round = self.clients = self.clients_done = self.examples = self.examples_done = 0

    @property
    def fraction(self) -> float:
        """How much of the request is done, from 0 to 1; by clients if nobody knows how many examples they have."""
        if self.examples:
            return self.examples_done / self.examples
        return self.clients_done / self.clients if self.clients else 0.0


@contextmanager
def published(fleet: Any, folder: Path) -> Iterator[None]:
    """Keep the fleet's activity in a file of this folder, removed at the end. Writing to it is a memory copy."""
    activity, path = getattr(fleet, "activity", None), folder / ACTIVITY
    if activity is None:
        yield
        return
    path.write_bytes(bytes(Activity()))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), ctypes.sizeof(Activity)) as copy:
        activity._copy = copy
        try:
            yield
        finally:
            activity._copy = None
            path.unlink(missing_ok=True)


def read_activity(folder: Path) -> Activity | None:
    """What the run in this folder is doing; None if that is not known."""
    try:
        content = (folder / ACTIVITY).read_bytes()
    except OSError:
        return None
    return Activity.from_buffer_copy(content) if len(content) == ctypes.sizeof(Activity) else None
