"""Read and write files of bytes and named tensors, atomically or in place, without pickle."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import save as arrays_to_bytes
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from spherefed.errors import RunError
from spherefed.tensors import Tensors

MAX_DIGITS = 40
"""Of whole numbers in JSON, with a sign: seeds have up to 128 bits, and much larger numbers overflow elsewhere."""


def read_file(path: Path) -> bytes:
    """The content of a regular file. A device or a pipe in its place is an OSError: it may have no end."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(EINVAL, "it is not a regular file", str(path))
    return path.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of any origin; raises ValueError, also for values nested too deeply and for numbers of many digits."""
    try:
        return json.loads(text, parse_int=_bounded_int)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits, at most {MAX_DIGITS} are allowed")
    return int(digits)


def json_bytes(value: Any) -> bytes:
    """JSON that people can read, with a line for each value."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


@contextmanager
def private_files() -> Iterator[None]:
    """Within it, this process and those that it starts create files and folders that only their owner can read."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_bytes(path: Path, content: bytes) -> None:
    """Write atomically: write a temporary file in the same folder, flush it to disk, then rename it."""
    # Process id and thread id make the name unique among running writers. A file that an earlier process with the same
    # id left behind can be overwritten.
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


_flush = getattr(
    os, "fdatasync", os.fsync
)  # not on every platform; it skips the modification time and takes half as long


def overwrite(path: Path, content: bytes) -> None:
    """Write in place and flush to disk: faster than `write_bytes`, but an interruption leaves a damaged file."""
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


def tensors_to_bytes(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    """Tensors and text metadata in the safetensors format."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if any(tensor.dtype is torch.bfloat16 for tensor in plain.values()):  # numpy has no bfloat16
        return save_safetensors(plain, metadata)
    # The same bytes as `save_safetensors` gives, in a quarter of the time.
    return arrays_to_bytes({name: tensor.numpy() for name, tensor in plain.items()}, metadata)


def tensors_from_bytes(content: bytes) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The inverse of `tensors_to_bytes`; raises ValueError if the content is not valid safetensors."""
    try:
        tensors = load_safetensors(content)
    except (SafetensorError, KeyError) as error:  # KeyError: a type that torch does not have
        raise ValueError(str(error)) from error
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__") or {}


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """Write tensors and text metadata atomically as a safetensors file."""
    write_bytes(path, tensors_to_bytes(tensors, metadata))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    try:
        return tensors_from_bytes(read_file(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
