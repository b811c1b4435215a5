"""Loss functions. Both average over the batch; the MSE also averages over classes (the 1/C of Eq. 5)."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor
from torch.nn import functional

from spherefed.components import find_component
from spherefed.errors import ConfigError, ModelError
from spherefed.schema import Options


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropy:
    """Cross-entropy of softmax(τ · scores)."""

    kind: ClassVar[str] = "ce"
    scale: float = 1.0
    """τ. With unit features, scores lie in [−1, 1], too small a range for a softmax; τ = 10 to 30 is usual then."""

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"loss.scale must be positive, got {self.scale}")

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self._scaled(scores), labels)

    def per_example(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each example, (n,)."""
        return functional.cross_entropy(self._scaled(scores), labels, reduction="none")

    def _scaled(self, scores: Tensor) -> Tensor:
        """τ · scores."""
        return scores if self.scale == 1.0 else scores * self.scale


@dataclass(frozen=True, slots=True)
class MeanSquaredError:
    """SphereFed, Eq. 5:  1/C · ‖W z − one_hot(y)‖²."""

    kind: ClassVar[str] = "mse"

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.mse_loss(scores, one_hot(scores, labels))

    def per_example(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each example, (n,)."""
        return (scores - one_hot(scores, labels)).square().mean(dim=1)


class OwnLoss(Protocol):
    """A user's loss: a frozen dataclass. With a method `per_example` like those above, clients can be stacked."""

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar that autograd can differentiate."""
        ...


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A user's function of scores and labels, or the class of one, such as torch.nn.CrossEntropyLoss."""

    kind: str
    """`package.module:Name`."""
    options: Options = ()
    expected: ClassVar[str] = "a function of (scores, labels)"

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        found: Any = find_component(self.kind, "loss.kind", self.expected)
        options = dict(self.options)
        loss = found(**options) if isinstance(found, type) else functools.partial(found, **options)
        value: Tensor = loss(scores, labels)
        return value


Loss = CrossEntropy | MeanSquaredError | LossFunction | OwnLoss


class PerExample(Protocol):
    """A loss that is known for each example of a batch, which training several clients as one needs."""

    def per_example(self, scores: Tensor, labels: Tensor) -> Tensor: ...


def has_per_example(loss: Loss) -> bool:
    """Whether the loss can be computed for each example of a batch."""
    return hasattr(loss, "per_example")


def sphere_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """SphereFed, Eq. 5:  1/C · ‖W z − one_hot(y)‖², averaged over the batch.

    >>> import torch
    >>> sphere_mse(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()
    0.0
    """
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or labels.is_floating_point():
        kind = str(labels.dtype).removeprefix("torch.")
        raise ModelError(
            f"sphere_mse needs scores (n, C) and labels (n,) of class numbers, got {tuple(scores.shape)} and {kind} "
            f"{tuple(labels.shape)}; give one whole number per row"
        )
    try:
        return functional.mse_loss(scores, one_hot(scores, labels.long()))
    except RuntimeError as error:
        raise ModelError(
            f"sphere_mse: labels must lie in 0..{scores.shape[1] - 1} for {scores.shape[1]} classes: {error}; "
            "number the classes from 0, or raise num_classes"
        ) from error


def one_hot(scores: Tensor, labels: Tensor) -> Tensor:
    """one_hot(y), in the dtype of the scores."""
    return functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
