"""Bytes and named tensors as files: whole or not at all, or overwritten where they lie; read back without pickle."""

import json
import os
import threading
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import save as arrays_to_bytes
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

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


_flush = getattr(os, "fdatasync", os.fsync)  # not everywhere; without the time of the change it costs half


def overwrite(path: Path, content: bytes) -> None:
    """Where the file lies, flushed to the disk: cheap, but torn if it is interrupted."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        written = 0
        while written < len(content):
            written += os.write(handle, memoryview(content)[written:])
        if os.fstat(handle).st_size != len(content):
            os.ftruncate(handle, len(content))
        _flush(handle)
    finally:
        os.close(handle)


def pack(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    """As safetensors, with short texts beside them."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if any(tensor.dtype is torch.bfloat16 for tensor in plain.values()):  # which numpy does not have
        return tensors_to_bytes(plain, metadata)
    # The same bytes as from tensors, at a fourth of the price.
    return arrays_to_bytes({name: tensor.numpy() for name, tensor in plain.items()}, metadata)


def unpack(content: bytes) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The inverse of `pack`; a ValueError if it is not one."""
    try:
        tensors = tensors_from_bytes(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__", {})


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """As safetensors, with short texts beside them."""
    write_bytes(path, pack(tensors, metadata))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the texts beside them."""
    try:
        return unpack(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
