"""Decoded pixels on disk: written once, in one piece, then memory-mapped by every process that needs them.

Pages of the mapping that nobody writes to are shared between processes by the operating system, so a further worker
costs next to nothing. A worker gets at them by calling `load` itself: tensors sent through a pipe would be copied.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.data.dataset import Dataset
from spherefed.data.examples import Augment, Examples, Preparation
from spherefed.errors import DataError

FORMAT = 1
"""Part of every cache folder's name: raise it when what the decoders write changes."""
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a decoder learnt beside the pixels; stored as JSON with them."""

    classes: tuple[str, ...]
    provenance: dict[str, str]
    mean: tuple[float, ...] = ()
    """Per channel, of the training part, where no published constants exist."""
    std: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded:
    """The arrays of one data set as mapped from disk, with the facts about them."""

    arrays: Mapping[str, Tensor] = field(repr=False)
    facts: Facts

    def dataset(self, name: str, prepare: Preparation, augment: Augment | None) -> Dataset:
        return Dataset(
            name=name,
            train=Examples(self.arrays["train_images"], self.arrays["train_labels"], prepare),
            test=Examples(self.arrays["test_images"], self.arrays["test_labels"], prepare),
            classes=self.facts.classes,
            augment=augment,
            mapped=True,
            provenance=self.facts.provenance,
        )


def decoded(root: Path, name: str, files: Iterable[Path], decode: Callable[[Path], Facts]) -> Decoded:
    """The arrays that `decode` makes of these files, from the cache if they were decoded before.

    `decode` writes `train_images.npy` … into the folder it is given and returns the facts. The key is the path, size
    and modification time of the files: a changed file is decoded (and checked) again.
    """
    folder = root / "cache" / f"{name}-{_fingerprint(files)}-v{FORMAT}"
    found = _open(folder)
    if found is None:
        _build(folder, decode)
        found = _open(folder)
        assert found is not None, f"{folder} was just written"
    return found


def new_array(folder: Path, name: str, shape: tuple[int, ...]) -> "NDArray[np.uint8]":
    """An array of bytes in the cache folder, to be filled in place: larger sets than memory can be decoded."""
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=shape)


def save_array(folder: Path, name: str, array: "NDArray[Any]") -> None:
    np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _fingerprint(files: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for path in files:
        stat = path.stat()
        sha.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return sha.hexdigest()[:16]


def _open(folder: Path) -> Decoded | None:
    """None if there is no cache, or not a whole one: it is then made again."""
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        # Copy-on-write: torch asks for writable memory, and nothing that is written could reach the file.
        maps = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS}
        return Decoded(
            arrays={name: torch.from_numpy(array) for name, array in maps.items()},
            facts=Facts(
                classes=tuple(facts["classes"]),
                provenance=dict(facts["provenance"]),
                mean=tuple(facts["mean"]),
                std=tuple(facts["std"]),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _build(folder: Path, decode: Callable[[Path], Facts]) -> None:
    """Decode into a folder of another name, then rename: readers see all of it or none of it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise DataError(
            f"cannot write decoded images to {folder.parent}: {error.strerror}; choose a data root that is writable "
            "(--data-root or SPHEREFED_DATA), and link the archives there"
        ) from error
    try:
        facts = decode(scratch)
        plain = {name: getattr(facts, name) for name in ("classes", "provenance", "mean", "std")}
        (scratch / "facts.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
        if folder.exists() and _open(folder) is None:  # a damaged one
            shutil.rmtree(folder)
        try:
            scratch.rename(folder)
        except OSError:
            if _open(folder) is None:  # otherwise another process was faster, with the same content
                raise
    except OSError as error:
        raise DataError(f"cannot write decoded images to {folder}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
