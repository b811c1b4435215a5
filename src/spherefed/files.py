"""Whole files or none: bytes and named tensors written in one step, and read back without pickle."""

import json
import os
import threading
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import save as arrays_to_bytes
from safetensors.torch import load as tensors_from_bytes

from spherefed.errors import RunError
from spherefed.tensors import Tensors


def write_bytes(path: Path, content: bytes) -> None:
    """All or nothing: a temporary file in the same folder, flushed to the disk, put in place in one step."""
    # Nobody else uses this name, so what a process of the same number once left there may be overwritten.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """As safetensors, with short texts beside them."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    write_bytes(path, arrays_to_bytes(arrays, metadata))  # the same bytes as from tensors, at a fourth of the price


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the texts beside them."""
    try:
        raw = path.read_bytes()
        tensors = tensors_from_bytes(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return tensors, header.get("__metadata__", {})
