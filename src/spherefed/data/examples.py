"""Examples (inputs with labels) as a view of shared tensors, and the batches made from them.

The data of a client are indices into the data set that all clients of a process share, so an idle client needs only the
memory of its indices. `sources` loads the pixels; `partition` assigns them to clients.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.errors import ConfigError

Batch = tuple[Tensor, Tensor]
Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""Stored inputs and a random stream → changed inputs of the same shape and dtype."""

NO_INDICES = torch.zeros(0, dtype=torch.int64)
"""Those of a view without examples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """Conversion of stored pixels to inputs of an encoder: (x · scale − mean) / std, per channel."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (len(self.mean) == len(self.std) and all(deviation > 0 for deviation in self.std)):
            raise ConfigError(
                f"mean and std need one number per channel, every std positive; got {self.mean} and {self.std}"
            )

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs (n, channels, height, width) of any dtype → float32, with one multiplication and one addition."""
        factor, offset = _multiply_add(self, inputs.device)
        # `to` does not copy float32 inputs; multiplying those in place would change the stored data.
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
    """Inputs and labels, or the subset at `indices`. Data are copied only when a batch is made."""

    inputs: Tensor
    """(n, …), as stored: bytes for images that `prepare` converts to floats batch by batch."""
    labels: Tensor
    """(n,): int64 class numbers."""
    prepare: Preparation | None = None
    """None: the stored inputs are the inputs of the encoder."""
    indices: Tensor | None = None
    """None: all examples."""

    def __len__(self) -> int:
        return (self.labels if self.indices is None else self.indices).shape[0]

    def take(self, indices: "np.ndarray | Tensor") -> "Examples":
        """The examples at these indices of this view."""
        selected = torch.as_tensor(indices, dtype=torch.int64)
        if self.indices is not None:
            selected = self.indices[selected]
        return Examples(self.inputs, self.labels, self.prepare, selected)

    def all_labels(self) -> Tensor:
        """The labels of this view, in its order."""
        return self.labels if self.indices is None else self.labels[self.indices]

    def epoch(
        self,
        batch_size: int,
        order: np.random.Generator,
        *,
        augment: Augment | None = None,
        device: torch.device,
        min_batch_size: int = 1,
    ) -> Iterator[Batch]:
        """One pass over the examples in a new random order. The last batch may be smaller than the others.

        If it has fewer than `min_batch_size` examples, it is merged into the batch before it. If there are fewer
        examples than that in total, there is no batch.
        """
        for indices in self.shuffled_indices(batch_size, order, min_batch_size=min_batch_size):
            inputs = self.inputs.index_select(0, indices)
            if augment is not None:
                inputs = augment(inputs, order)
            yield self.prepared(inputs, device), self.labels.index_select(0, indices).to(device)

    def shuffled_indices(
        self, batch_size: int, order: np.random.Generator, epochs: int = 1, *, min_batch_size: int = 1
    ) -> Iterator[Tensor]:
        """The batches of one `epoch` after the other as indices into the shared tensors."""
        num_examples = len(self)
        starts = list(range(0, num_examples, batch_size))
        if starts and num_examples - starts[-1] < min_batch_size:
            starts.pop()
        for _ in range(epochs):
            permuted = torch.from_numpy(
                order.permutation(num_examples if self.indices is None else self.indices.numpy())
            )
            for start, stop in pairwise([*starts, num_examples]):
                yield permuted[start:stop]

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """One pass in stored order without augmentation, for evaluation and statistics."""
        order = torch.arange(len(self)) if self.indices is None else self.indices
        for start in range(0, len(self), batch_size):
            selected = order[start : start + batch_size]  # indices copy the inputs: an encoder may change them in place
            yield self.prepared(self.inputs[selected], device), self.labels[selected].to(device)

    def prepared(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Move stored inputs to the device and apply `prepare`."""
        inputs = inputs.to(device)
        return inputs if self.prepare is None else self.prepare(inputs)


def hold_out(size: int, fraction: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split 0..size−1 at random into (training, held out), `floor(size · fraction)` held out, both ascending."""
    order = rng.permutation(size)
    num_held_out = int(size * fraction)
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])


def with_held_out(
    own: Examples, fraction: float, validation: float, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """A client's examples for training, and those for its evaluation.

    For tuning, with `validation` above 0, the second are that fraction of the training examples instead: tuning never
    sees what is held out.
    """
    kept, held_out = hold_out(len(own), fraction, rng)
    if validation:
        again, chosen = hold_out(len(kept), validation, rng)
        kept, held_out = kept[again], kept[chosen]
    return own if len(kept) == len(own) else own.take(kept), own.take(held_out)
