"""What tensors free stays with the process, for the tensors of the next step.

The C library of most Linux systems gives large freed blocks back to the system, which then maps and clears new ones for
every step: three tenths of a training step of the paper's ConvNet at worst (docs/speed.md). Other C libraries are left
as they are, and so is this one where the environment says how it is to be run.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What `mallopt` calls: how much may lie free at the end of the heap, and from what size a block is mapped apart."""
_USUAL_MMAP = 32 << 20
"""As high as the C library goes by itself; before version 2.35 it could be told no more."""


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
        # Once the C library was told, it no longer looks for thresholds by itself.
        if _set(trim=2 * _USUAL_MMAP, mmap=_USUAL_MMAP):
            ctypes.CDLL(None).malloc_trim(0)


def give_back_freed_memory() -> None:
    """Give what is free back to the system now, before something large: the C library keeps blocks up to 32 MiB."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is not None and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def _set(*, trim: int, mmap: int) -> bool:
    """Whether there is something to set."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not hasattr(library, "mallopt"):
        return False
    by_name = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"))
    if by_name or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):  # the environment says how it is to be run
        return False
    if not library.mallopt(_MMAP_THRESHOLD, mmap):
        library.mallopt(_MMAP_THRESHOLD, _USUAL_MMAP)
    return bool(library.mallopt(_TRIM_THRESHOLD, trim))
