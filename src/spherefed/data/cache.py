"""Cache of decoded pixels on disk: written once, atomically, then memory-mapped by every process that needs them.

The operating system shares unmodified pages of the mapping between processes, so each further worker needs almost no
memory. Every worker calls `load` itself, because tensors sent through a pipe would be copied.
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
from spherefed.files import parse_json

FORMAT = 1
"""Part of the name of every cache folder; increase it when the output of a decoder changes."""
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, kw_only=True)
class DecodedInfo:
    """Metadata that a decoder returns; stored as JSON beside the arrays."""

    classes: tuple[str, ...]
    provenance: dict[str, str]
    mean: tuple[float, ...] = ()
    """Per channel, of the training part; empty if published constants exist."""
    std: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded:
    """The memory-mapped arrays of one data set, with their metadata."""

    folder: Path
    arrays: Mapping[str, Tensor] = field(repr=False)
    info: DecodedInfo

    def dataset(self, name: str, prepare: Preparation, augment: Augment | None) -> Dataset:
        return Dataset(
            name=name,
            train=Examples(self.arrays["train_images"], self.arrays["train_labels"], prepare),
            test=Examples(self.arrays["test_images"], self.arrays["test_labels"], prepare),
            classes=self.info.classes,
            augment=augment,
            memory_mapped=True,
            cache_folder=self.folder,
            provenance=self.info.provenance,
        )


def load_decoded(root: Path, name: str, files: Iterable[Path], decode: Callable[[Path], DecodedInfo]) -> Decoded:
    """Load the decoded arrays of these files from the cache; call `decode` first if they are not in it.

    `decode` writes `train_images.npy` … into the given folder and returns the metadata. The cache key is the path, size
    and modification time of the files: a changed file is decoded (and checked) again.
    """
    folder = root / "cache" / f"{name}-{_fingerprint(files)}-v{FORMAT}"
    cached = _open(folder)
    if cached is None:
        _build(folder, decode)
        cached = _open(folder)
        assert cached is not None, f"{folder} was just written"
    return cached


def new_array(folder: Path, name: str, shape: tuple[int, ...]) -> "NDArray[np.uint8]":
    """A memory-mapped array of bytes in the cache folder, so that data sets larger than memory can be decoded."""
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
    """None if the cache does not exist or is incomplete; it is then built again."""
    try:
        info = parse_json((folder / "info.json").read_text(encoding="utf-8"))
        # Copy-on-write: torch requires writable memory, and writes must not change the file.
        maps = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS}
        return Decoded(
            folder=folder,
            arrays={name: torch.from_numpy(array) for name, array in maps.items()},
            info=DecodedInfo(
                classes=tuple(info["classes"]),
                provenance=dict(info["provenance"]),
                mean=tuple(info["mean"]),
                std=tuple(info["std"]),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def _build(folder: Path, decode: Callable[[Path], DecodedInfo]) -> None:
    """Decode into a temporary folder, then rename it, so that readers see a complete cache or none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise DataError(
            f"cannot write decoded images to {folder.parent}: {error.strerror}; choose a data root that is writable "
            "(--data-root or SPHEREFED_DATA), and link the archives there"
        ) from error
    try:
        info = decode(scratch)
        plain = {name: getattr(info, name) for name in ("classes", "provenance", "mean", "std")}
        (scratch / "info.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
        if folder.exists() and _open(folder) is None:  # damaged
            shutil.rmtree(folder)
        try:
            scratch.rename(folder)
        except OSError:
            if _open(folder) is None:  # otherwise another process wrote the same content first
                raise
    except OSError as error:
        raise DataError(f"cannot write decoded images to {folder}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
