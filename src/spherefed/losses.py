"""Losses, chosen by value. Both average over the batch; the MSE averages over classes as well (the 1/C of Eq. 5)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from spherefed.errors import ConfigError
from spherefed.tensors import one

_aten = torch.ops.aten
_EACH, _MEAN, _IGNORED = 0, 1, -100
"""Torch's numbers for no average over examples and for one, and for the label that its cross-entropy leaves out."""


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

    def slope(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The loss, and  ∂/∂scores = τ/n · (softmax(τ · scores) − one_hot(y)),  by the functions autograd calls.

        With `weights`, (n,) in the place of 1/n: each example's loss, (n,), and the slope of their weighted sum.
        """
        how = _MEAN if weights is None else _EACH
        log_p = functional.log_softmax(self._scaled(scores), dim=1)
        value, counted = _aten.nll_loss_forward.default(log_p, labels, None, how, _IGNORED)
        start = one(value.dtype, value.device) if weights is None else weights
        slope = _aten.nll_loss_backward.default(start, log_p, labels, None, how, _IGNORED, counted)
        return value, self._scaled(_aten._log_softmax_backward_data.default(slope, log_p, 1, log_p.dtype))

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

    def slope(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The loss, and  ∂/∂scores = 2/(nC) · (scores − one_hot(y));  with `weights` as for cross-entropy."""
        targets = _targets(scores, labels)
        if weights is None:
            value = functional.mse_loss(scores, targets)
            return value, _aten.mse_loss_backward.default(one(value.dtype, value.device), scores, targets, _MEAN)
        apart = scores - targets
        return apart.square().mean(dim=1), apart * (2 / scores.shape[1] * weights)[:, None]

    def each(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Example by example, (n,)."""
        return (scores - _targets(scores, labels)).square().mean(dim=1)


Loss = CrossEntropy | MeanSquares


def sphere_mse(scores: Tensor, labels: Tensor) -> Tensor:
    """SphereFed, Eq. 5:  1/C · ‖W z − one_hot(y)‖², averaged over the batch.

    >>> import torch
    >>> sphere_mse(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()
    0.0
    """
    return functional.mse_loss(scores, _targets(scores, labels))


def _targets(scores: Tensor, labels: Tensor) -> Tensor:
    """one_hot(y), in the dtype of the scores."""
    return functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
