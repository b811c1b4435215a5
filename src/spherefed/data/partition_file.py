"""Read and write partitions as files, so that a partition can be reused with any version of numpy."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spherefed.errors import DataError
from spherefed.files import parse_json, tensors_to_bytes

FORMAT = "spherefed-partition-1"


def digest_parts(parts: "Sequence[NDArray[np.int64]]") -> str:
    """SHA-256 of the index arrays: equal digests mean equal partitions."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part.astype("<i8").tobytes())
    return sha.hexdigest()


def parts_to_bytes(parts: "Sequence[NDArray[np.int64]]", label_counts: "NDArray[np.int64]") -> bytes:
    """For a run directory, as safetensors: the parts one after the other, where each begins, and label counts."""
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    tensors = {
        "indices": torch.from_numpy(np.concatenate(parts)),
        "offsets": torch.from_numpy(offsets),
        "label_counts": torch.from_numpy(label_counts.astype(np.int64)),
    }
    return tensors_to_bytes(tensors, {"digest": digest_parts(parts)})


def write_parts(parts: "Sequence[NDArray[np.int64]]", path: Path) -> None:
    """Write JSON with the index lists, the total number of examples and the digest."""
    plain = {
        "format": FORMAT,
        "num_examples": int(sum(len(part) for part in parts)),
        "digest": digest_parts(parts),
        "clients": [part.tolist() for part in parts],
    }
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(json.dumps(plain, separators=(",", ":")) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write the partition to {path}: {error.strerror}") from error


def read_parts(path: Path, num_examples: int) -> "list[NDArray[np.int64]]":
    """Read index arrays for `num_examples`. Raises DataError unless they are disjoint, complete and unchanged."""
    plain = _read_json(path)
    if plain.get("num_examples") != num_examples:
        raise DataError(f"{path} is for {plain.get('num_examples')} examples, but the data set has {num_examples}")
    clients = plain.get("clients")
    if not isinstance(clients, list) or not clients:
        raise DataError(f"{path} has no list 'clients' of index lists")
    for client, indices in enumerate(clients):
        if not isinstance(indices, list) or not all(type(index) is int for index in indices):
            raise DataError(f"{path}: client {client} is not a list of whole numbers")
        outside = [index for index in indices if not 0 <= index < num_examples]
        if outside:
            raise DataError(f"{path}: index {outside[0]} of client {client} is outside 0..{num_examples - 1}")
    parts = [np.array(indices, dtype=np.int64) for indices in clients]
    owners = np.bincount(np.concatenate(parts), minlength=num_examples)
    if owners.max(initial=0) > 1:
        raise DataError(f"{path}: example {int(owners.argmax())} belongs to several clients")
    if owners.min(initial=1) < 1:
        raise DataError(f"{path}: example {int(owners.argmin())} belongs to no client")
    if plain.get("digest") != digest_parts(parts):
        raise DataError(f"{path}: the digest does not match the indices; the file was changed after it was written")
    return parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        plain = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"cannot read the partition {path}: {error.strerror}; `spherefed partition … --export FILE` writes one"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is not a partition file: {error}") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DataError(f"{path} is not a partition file: 'format' must be {FORMAT!r}")
    return plain
