"""Losses, chosen by value. Both average over the batch; the MSE averages over classes as well (the 1/C of Eq. 5)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from spherefed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropy:
    """Cross-entropy of softmax(τ · scores)."""

    kind: ClassVar[str] = "ce"
    scale: float = 1.0
    """τ: on the unit sphere scores lie in [−1, 1], too flat for a softmax; there τ of 10 to 30 is usual."""

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"loss.scale must be positive, got {self.scale}")

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self._scaled(scores), labels)

    def each(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Example by example, (n,)."""
        return functional.cross_entropy(self._scaled(scores), labels, reduction="none")

    def _scaled(self, scores: Tensor) -> Tensor:
        return scores if self.scale == 1.0 else scores * self.scale


@dataclass(frozen=True, slots=True)
class MeanSquares:
    """SphereFed, Eq. 5:  1/C · ‖W z − one_hot(y)‖²."""

    kind: ClassVar[str] = "mse"

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return sphere_mse(scores, labels)

    def each(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Example by example, (n,)."""
        return (scores - functional.one_hot(labels, scores.shape[1])).square().mean(dim=1)


Loss = CrossEntropy | MeanSquares


def sphere_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """SphereFed, Eq. 5:  1/C · ‖W z − one_hot(y)‖², averaged over the batch.

    >>> import torch
    >>> sphere_mse(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()
    0.0
    """
    return functional.mse_loss(scores, functional.one_hot(labels, scores.shape[1]).to(scores.dtype))
