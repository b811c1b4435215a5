"""CIFAR's own files are Python 2 pickles: this reads them, and nothing that a pickle could otherwise do.

Two locks. Only the opcodes that build dictionaries, lists, tuples, strings, numbers and one call are admitted, before
anything is executed; and the only names that may be called are three of numpy's, which are answered by stand-ins that
hold bytes. No code of numpy, and none of the file's choosing, runs.
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
    """Stands in for `numpy.ndarray` while a pickle is read: its state is kept, not acted upon."""

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
    """Stands in for `numpy.dtype`."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs") from None


def read_cifar_pickle(content: bytes, where: str) -> dict[str, Any]:
    """The dictionary in one of CIFAR's files: lists of numbers and names, and one array of bytes."""
    try:
        _admit(content)
        found = _Unpickler(io.BytesIO(content), fix_imports=False, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{where} is not a CIFAR pickle: {error or type(error).__name__}; nothing of it was run"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{where} holds a {type(found).__name__}, not the dictionary of a CIFAR file")
    return {_text(key, where): _plain(value) for key, value in found.items()}


def _admit(content: bytes) -> None:
    for opcode, argument, position in pickletools.genops(content):
        if opcode.name not in _DATA_OPCODES | _ARRAY_OPCODES:
            raise pickle.UnpicklingError(f"opcode {opcode.name} at byte {position} is not admitted")
        # The reader reserves memory for the highest number under which anything is remembered.
        if "PUT" in opcode.name and not 0 <= int(argument or 0) <= len(content):
            raise pickle.UnpicklingError(f"memo number {argument} at byte {position}")


def _text(key: Any, where: str) -> str:
    try:
        return key.decode("ascii") if isinstance(key, bytes) else str(key)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} has the key {key!r}, which is not ASCII") from error


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
