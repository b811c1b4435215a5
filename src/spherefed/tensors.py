"""Named tensors: what models, updates and statistics are made of once they travel.

Knows nothing of learning: sizes, digests, and the one-thread scope in which everything reproducible runs.
"""

import functools
import hashlib
from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def num_bytes(tensors: Tensors) -> int:
    """Bytes of the numbers themselves, as they travel."""
    return sum(t.nbytes for t in tensors.values())


def prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The same tensors under longer names, so that several kinds fit under one roof; `under` takes them out again."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The inverse of `prefixed`.

    >>> list(under("m", {"m.weight": torch.zeros(1), "v.weight": torch.zeros(1)}))
    ['weight']
    """
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def digest(tensors: Tensors) -> str:
    """SHA-256 over names, dtypes, shapes and bits, in the order of names."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


@functools.cache
def one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where a gradient starts: d value / d value. To be read only."""
    return torch.ones((), dtype=dtype, device=device)


class WeightedSum:
    """Σ w · tensors, name by name, added up in the order given.

    >>> total = WeightedSum()
    >>> total.add({"x": torch.ones(1)}, 2.0)
    >>> total.times(0.5)
    {'x': tensor([1.])}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, tensors: Tensors, weight: float) -> None:
        if not tensors:
            return
        if not self._sums:
            self._sums = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        torch._foreach_add_(list(self._sums.values()), [tensors[name] for name in self._sums], alpha=weight)

    def times(self, scale: float) -> dict[str, Tensor]:
        """The sum, scaled; nothing may be added afterwards."""
        if self._sums:
            torch._foreach_mul_(list(self._sums.values()), scale)
        return self._sums


class one_thread:  # noqa: N801 - used as a function is; a generator would cost five times as much to enter
    """Run on one thread, so that sums come out in the same order everywhere; the caller's setting is put back."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._before != 1:
            torch.set_num_threads(self._before)


def mismatch(given: Tensors, expected: Tensors) -> str | None:
    """The first way in which `given` differs from `expected` in names, shapes, dtypes, or None.

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
    """The name of the first tensor that holds a NaN or an infinity, or None."""
    if not tensors:
        return None
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    # NaN and infinity survive a sum, or become NaN, and few numbers are cheaper to look at than many; finite tensors
    # whose sum overflows are told apart by the second look.
    if isfinite(sum([tensor.sum().item() for tensor in floats.values()])):
        return None
    return next((name for name, tensor in floats.items() if not bool(tensor.isfinite().all())), None)
