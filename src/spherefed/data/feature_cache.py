"""Features of a frozen encoder on disk: computed once for each example, then memory-mapped by every process.

A cache belongs to one array of inputs and one key, which the caller makes from everything else that features depend
on: encoder, weights, preprocessing, and the library that computes. Rows are computed when they are first needed, so a
subset of a data set costs only its own rows. Blocks of finished rows are recorded after they are written: a process
that is killed loses one block, and a lock lets one process at a time compute.
"""

import fcntl
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.errors import DataError

LOGGER = logging.getLogger("spherefed")

BLOCK_ROWS = 256
"""Rows between two records of progress."""

Compute = Callable[[Tensor], Tensor]
"""Row numbers (n,) → their features (n, l), float32."""


def cached_features(root: Path, inputs: Tensor, rows: Tensor, *, key: str, dim: int, compute: Compute) -> Tensor:
    """Features (N, l) of all N inputs as a memory-mapped array, in which at least `rows` are computed.

    Other rows may be zero. The array is a private copy-on-write mapping: changes to it do not reach the file.
    """
    name = hashlib.sha256(f"{key} {_digest(inputs)}".encode()).hexdigest()[:32]
    folder = root / "cache" / f"features-{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            features, done = _open(folder, len(inputs), dim)
            missing = rows.numpy()[~done[rows.numpy()]]
            for block in _with_progress([missing[i : i + BLOCK_ROWS] for i in range(0, len(missing), BLOCK_ROWS)]):
                features[block] = compute(torch.from_numpy(block)).cpu().numpy()
                features.flush()
                done[block] = True
                done.flush()
        return torch.from_numpy(np.load(folder / "features.npy", mmap_mode="c", allow_pickle=False))
    except OSError as error:
        raise DataError(
            f"cannot write features to {folder}: {error.strerror or error}; choose a data root that is writable "
            "(--data-root or SPHEREFED_DATA)"
        ) from error


def _open(folder: Path, num: int, dim: int) -> "tuple[np.memmap[Any, Any], np.memmap[Any, Any]]":
    """The features and which of them are computed; files that do not fit are replaced."""
    wanted: dict[str, tuple[tuple[int, ...], Any]] = {
        "features": ((num, dim), np.dtype(np.float32)),
        "done": ((num,), np.dtype(np.bool_)),
    }
    try:
        found = [np.load(folder / f"{name}.npy", mmap_mode="r+", allow_pickle=False) for name in wanted]
        if [(array.shape, array.dtype) for array in found] == list(wanted.values()):
            return found[0], found[1]
    except (OSError, ValueError, EOFError):
        pass
    # `done` last: if it exists and fits, so do the features.
    for name in wanted:
        (folder / f"{name}.npy").unlink(missing_ok=True)
    features, done = (
        np.lib.format.open_memmap(_reserved(folder / f"{name}.npy", shape, dtype), mode="r+")
        for name, (shape, dtype) in wanted.items()
    )
    return features, done


def _reserved(path: Path, shape: tuple[int, ...], dtype: Any) -> Path:
    """A new array of zeros whose bytes are reserved: writing to a mapped file on a full disk would end the process."""
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system releases the lock, however the process ends."""
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            LOGGER.warning("another process computes features in %s; waiting for it", folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _digest(inputs: Tensor) -> str:
    """SHA-256 of dtype, shape and bytes."""
    array = np.ascontiguousarray(inputs.detach().cpu().numpy())
    sha = hashlib.sha256(f"{array.dtype}\0{array.shape}\0".encode())
    sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def _with_progress(blocks: "Sequence[NDArray[np.int64]]") -> "Iterator[NDArray[np.int64]]":
    """The blocks, with a progress bar on standard error if that is a terminal."""
    if len(blocks) < 2 or not sys.stderr.isatty():
        yield from blocks
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(blocks, description="features of the frozen encoder", console=Console(stderr=True))
