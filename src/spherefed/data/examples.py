"""Examples: inputs with labels, as a view of shared tensors, and the batches cut from them.

A client's data is a set of indices into the data set that all clients of a process share, so a client that sits
idle costs its indices and nothing else. Where the pixels come from is `sources`; who gets which is `partition`.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from spherefed.errors import ConfigError

Batch = tuple[Tensor, Tensor]
Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""Stored inputs and a random stream → changed inputs of the same shape and dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """From stored pixels to what an encoder sees: (x · scale − mean) / std, per channel."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) and all(deviation > 0 for deviation in self.std)):
            raise ConfigError(f"mean {self.mean} and std {self.std} need one number per channel, every std above 0")

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs (n, channels, height, width) of any dtype → float32, as one multiplication and one addition."""
        factor, offset = _multiply_add(self, inputs.device)
        # `to` does not copy what is float32 already, so the multiplication must not be in place there.
        floats = inputs.to(torch.float32)
        return (floats.mul(factor) if floats is inputs else floats.mul_(factor)).add_(offset)


@functools.lru_cache(maxsize=32)
def _multiply_add(prepare: Preparation, device: torch.device) -> tuple[Tensor, Tensor]:
    """(x · scale − mean) / std  =  x · (scale / std) + (−mean / std), per channel."""
    mean, std = (torch.tensor(t, dtype=torch.float64).view(1, -1, 1, 1) for t in (prepare.mean, prepare.std))
    factor, offset = prepare.scale / std, -mean / std
    return factor.to(device, torch.float32), offset.to(device, torch.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Examples:
    """Inputs and labels, or the part of them that `indices` names; nothing is copied until a batch is cut."""

    inputs: Tensor
    """(n, …): as stored; small integers for images that `prepare` turns into floats batch by batch."""
    labels: Tensor
    """(n,): int64 class numbers."""
    prepare: Preparation | None = None
    """None: the inputs are stored as the encoder wants them."""
    indices: Tensor | None = None
    """None: all of them."""

    def __len__(self) -> int:
        return (self.labels if self.indices is None else self.indices).shape[0]

    def take(self, indices: "np.ndarray | Tensor") -> "Examples":
        """The examples at these positions of this view."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        if self.indices is not None:
            chosen = self.indices[chosen]
        return Examples(self.inputs, self.labels, self.prepare, chosen)

    def all_labels(self) -> Tensor:
        """Labels of this view, in its order."""
        return self.labels if self.indices is None else self.labels[self.indices]

    def epoch(
        self,
        batch_size: int,
        order: np.random.Generator,
        *,
        augment: Augment | None = None,
        device: torch.device,
        smallest: int = 1,
    ) -> Iterator[Batch]:
        """One pass in a fresh random order; the last batch may be short.

        If it has fewer than `smallest` examples, it joins the batch before it; a set with fewer gives no batch at all.
        """
        for chosen in self.shuffled(batch_size, order, smallest=smallest):
            inputs = self.inputs.index_select(0, chosen)
            if augment is not None:
                inputs = augment(inputs, order)
            yield self.finished(inputs, device), self.labels.index_select(0, chosen).to(device)

    def shuffled(self, batch_size: int, order: np.random.Generator, *, smallest: int = 1) -> Iterator[Tensor]:
        """The batches of `epoch` as positions in the shared tensors."""
        everything = len(self) if self.indices is None else self.indices.numpy()
        positions = torch.from_numpy(order.permutation(everything))
        for start, stop in _cuts(positions.shape[0], batch_size, smallest):
            yield positions[start:stop]

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """One pass in stored order, without augmentation: for evaluation and statistics."""
        for start in range(0, len(self), batch_size):
            chosen: slice | Tensor = slice(start, start + batch_size)
            if self.indices is not None:
                chosen = self.indices[chosen]
            yield self.finished(self.inputs[chosen], device), self.labels[chosen].to(device)

    def finished(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Stored inputs as the encoder wants them, where it is."""
        inputs = inputs.to(device)
        return inputs if self.prepare is None else self.prepare(inputs)


def _cuts(size: int, batch_size: int, smallest: int) -> Iterator[tuple[int, int]]:
    """Where batches begin and end.

    >>> list(_cuts(5, batch_size=2, smallest=1)), list(_cuts(5, batch_size=2, smallest=2))
    ([(0, 2), (2, 4), (4, 5)], [(0, 2), (2, 5)])
    """
    starts = list(range(0, size, batch_size))
    if starts and size - starts[-1] < smallest:
        starts.pop()
    return pairwise([*starts, size])
