"""Mappings from names to tensors, the form in which models, updates and statistics are sent and stored.

Sizes, digests, norms and checks, and the context in which reproducible code runs on one thread.
"""

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from math import hypot, isfinite
from typing import cast

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def num_bytes(tensors: Tensors) -> int:
    """Size of the tensor data in bytes, without names."""
    return sum(t.nbytes for t in tensors.values())


def add_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The same tensors with `prefix.` before each name, so that one mapping can hold several groups."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix.`, without it: the inverse of `add_prefix`.

    >>> list(strip_prefix("m", {"m.weight": torch.zeros(1), "v.weight": torch.zeros(1)}))
    ['weight']
    """
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def digest(tensors: Tensors) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in sorted order of names."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


@functools.cache
def unit_gradient(dtype: torch.dtype, device: torch.device) -> Tensor:
    """∂value/∂value = 1, the gradient that starts a backward pass. Cached: do not modify it."""
    return torch.ones((), dtype=dtype, device=device)


class one_thread:  # noqa: N801 - used like a function; `contextmanager` takes five times as long to enter
    """Context in which torch uses one thread, so that sums have the same order everywhere; restores the setting."""

    __slots__ = ("_num_threads",)

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()
        if self._num_threads != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._num_threads != 1:
            torch.set_num_threads(self._num_threads)


def mismatch(given: Tensors, expected: Tensors) -> str | None:
    """The first difference between `given` and `expected` in names, shapes or dtypes, or None.

    >>> mismatch({"a": torch.zeros(2)}, {"a": torch.zeros(3)})
    "'a' has shape (2,), expected (3,)"
    """
    if given.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
        return f"names differ: missing {missing}, unexpected {extra}"
    for name, like in expected.items():
        tensor = given[name]
        if tensor.shape != like.shape:
            return f"{name!r} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}"
        if tensor.dtype != like.dtype:
            return f"{name!r} has dtype {tensor.dtype}, expected {like.dtype}"
    return None


def non_finite(tensors: Tensors) -> str | None:
    """The name of the first tensor that contains NaN or infinity, or None."""
    if not tensors:
        return None
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    # A sum with a NaN or an infinity is not finite, and checking one sum is cheaper than checking every element. A sum
    # of finite numbers can overflow too; then the check of every element below finds nothing.
    if isfinite(sum([tensor.sum().item() for tensor in floats.values()])):
        return None
    return next((name for name, tensor in floats.items() if not bool(tensor.isfinite().all())), None)


def norm(tensors: Tensors) -> float:
    """‖·‖₂ of all tensors together; NaN or infinite if an element is.

    >>> norm({"a": torch.tensor([3.0]), "b": torch.tensor([0.0, 4.0])})
    5.0
    """
    if not tensors:
        return 0.0
    values = list(tensors.values())
    total = hypot(*[part.item() for part in torch._foreach_norm(values)])
    if isfinite(total):
        return total
    # The squares of finite float32 numbers can overflow.
    return hypot(*[part.item() for part in torch._foreach_norm([value.double() for value in values])])


def unlike(given: object, expected: Tensors) -> str | None:
    """Why these are not plain tensors with the names, shapes, dtypes and devices of `expected`, or None."""
    if type(given) is dict and given.keys() == expected.keys():
        for name, like in expected.items():
            if not _is_plain_like(given[name], like):
                break
        else:
            return None
    return not_plain(given) or mismatch(cast(Tensors, given), expected) or _misplaced(cast(Tensors, given), expected)


def _is_plain_like(tensor: object, like: Tensor) -> bool:
    """Whether `not_plain`, `mismatch` and `_misplaced` would find nothing; they say what is wrong."""
    return (
        type(tensor) is Tensor
        and not tensor.is_nested
        and tensor.shape == like.shape
        and tensor.dtype is like.dtype
        and tensor.device == like.device
        and tensor.layout is torch.strided
        and tensor.nbytes <= tensor.untyped_storage().nbytes()
        and not (tensor.requires_grad or tensor.is_neg() or tensor.is_conj())
    )


def _misplaced(given: Tensors, expected: Tensors) -> str | None:
    devices = ((name, given[name].device, like.device) for name, like in expected.items())
    return next((f"{name!r} is on {own}, expected {device}" for name, own, device in devices if own != device), None)


def not_plain(tensors: object) -> str | None:
    """Why this is not a mapping from names to ordinary dense tensors that hold values, or None.

    >>> not_plain({"a": torch.zeros(2, device="meta")})
    "'a' is not a dense tensor with values"
    """
    # Exact types: what a subclass says when it is asked again is not known.
    if type(tensors) not in (dict, OrderedDict):
        return f"named tensors are expected, got a {type(tensors).__name__}"
    for name, tensor in cast(dict[object, object], tensors).items():
        if type(name) is not str or type(tensor) is not Tensor:
            return f"named tensors are expected, got {name!r} with a {type(tensor).__name__}"
        if (
            tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_quantized
            or tensor.device.type == "meta"
        ):
            return f"{name!r} is not a dense tensor with values"
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            return f"{name!r} holds fewer elements than its shape says"
        if tensor.requires_grad or tensor.is_neg() or tensor.is_conj():
            return f"{name!r} is a tensor with pending operations"
    return None
