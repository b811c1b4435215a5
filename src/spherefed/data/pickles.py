"""A restricted reader for CIFAR's files, which are Python 2 pickles. It runs no code that a file chooses.

There are two checks. Before anything is executed, the opcodes are checked: only those are allowed that build
dictionaries, lists, tuples, strings and numbers, and that call a function. The only functions that a file can call are
three of numpy's, and these are replaced by classes that store bytes, so no code of numpy runs either.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from spherefed.errors import DataError

_DATA_OPCODES = frozenset(
    """
    PROTO STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2
    TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    """.split()  # noqa: SIM905
)
_ARRAY_OPCODES = frozenset(["GLOBAL", "REDUCE", "BUILD"])


class _Array:
    """Replaces `numpy.ndarray` while a pickle is read; it only accepts a state that describes an array of bytes."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        match state:
            case (int(), tuple() as shape, _Dtype(code=b"u1"), 0, bytes() as content):
                if not all(type(size) is int and 0 <= size < 2**31 for size in shape):
                    raise pickle.UnpicklingError(f"an array of shape {shape}")
                count = 1
                for size in shape:
                    count *= size
                if count != len(content):
                    raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
                self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape)
            case _:
                raise pickle.UnpicklingError("an array that is not of bytes in C order")


class _Dtype:
    """Replaces `numpy.dtype`; it only stores the type code."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_REPLACEMENTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _REPLACEMENTS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which CIFAR files do not need") from None


def read_cifar_pickle(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a CIFAR file: lists of numbers and names, and one array of bytes."""
    try:
        _check_opcodes(content)
        loaded = _Unpickler(io.BytesIO(content), fix_imports=False, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise many types of exceptions
        raise DataError(
            f"{where} is not a CIFAR pickle: {error or type(error).__name__}; no code of the file was run"
        ) from error
    if not isinstance(loaded, dict):
        raise DataError(f"{where} contains a {type(loaded).__name__}, not the dictionary of a CIFAR file")
    return {_text(key, where): _plain(value) for key, value in loaded.items()}


def _check_opcodes(content: bytes) -> None:
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name not in _DATA_OPCODES | _ARRAY_OPCODES:
            raise pickle.UnpicklingError(f"opcode {opcode.name} at byte {position} is not allowed")
        # The unpickler allocates memory for the highest memo index.
        if "PUT" in opcode.name and not 0 <= int(argument or 0) <= len(content):
            raise pickle.UnpicklingError(f"memo index {argument} at byte {position} is too large")


def _text(key: Any, where: str) -> str:
    try:
        return key.decode("ascii") if isinstance(key, bytes) else str(key)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} has the key {key!r}, which is not ASCII") from error


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
