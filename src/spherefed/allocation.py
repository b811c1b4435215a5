"""What tensors free stays with the process, for the tensors of the next step.

The C library of most Linux systems gives large freed blocks back to the system, which then maps and clears new ones for
every step: a fifth to a quarter of a training step of the paper's ConvNet (docs/speed.md). Other C libraries are left
as they are, and so is this one where the environment says how it is to be run.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What `mallopt` calls: how much may lie free at the end of the heap, and from what size a block is mapped apart."""
_OWN_WORDS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """From here on, in a process that does nothing but train."""
    _set(trim=(1 << 31) - 1, mmap=1 << 30)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """In a process that is somebody else's: what was kept is given back at the end."""
    keep_freed_memory()
    try:
        yield
    finally:
        # As high as the C library goes by itself; once it was told, it no longer looks for the best.
        if _set(trim=64 << 20, mmap=MOST_ONCE):
            ctypes.CDLL(None).malloc_trim(0)


MOST_ONCE = 32 << 20
"""Before version 2.35 no larger block could be had from the heap."""


def _set(*, trim: int, mmap: int) -> bool:
    """Whether there is something to set."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not hasattr(library, "mallopt") or any(name in os.environ for name in _OWN_WORDS):
        return False
    library.mallopt(_MMAP_THRESHOLD, mmap) or library.mallopt(_MMAP_THRESHOLD, MOST_ONCE)
    return bool(library.mallopt(_TRIM_THRESHOLD, trim))
