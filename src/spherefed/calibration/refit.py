"""Train only a head, on constant features; shared by CCVR and the oracle."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spherefed.calibration.context import SummaryValue
from spherefed.data.examples import Examples
from spherefed.errors import CalibrationError, ConfigError, NothingMeasuredError
from spherefed.losses import CrossEntropy, Loss
from spherefed.tensors import one_thread


@dataclass(frozen=True, kw_only=True, slots=True)
class Refit:
    """Hyper-parameters of SGD on the head; independent of those of local training."""

    lr: float
    """Constant learning rate. No default: the rates of CCVR and the oracle differ by orders of magnitude."""
    # Unstated in the paper: epochs, batch size and momentum. 100 epochs explain the FLOPs of Table 1; batch size and
    # momentum are those of local training.
    epochs: int = 100
    """Passes over the features."""
    batch_size: int | None = 64
    """None: full batch."""
    momentum: float = 0.9
    """Momentum of the SGD."""
    loss: Loss = field(default_factory=CrossEntropy)
    """Cross-entropy as in Luo et al. 2021, for any training loss of the encoder; Table 4 also uses the MSE."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"calibration.refit.lr must be positive, got {self.lr}")
        if self.epochs < 1:
            raise ConfigError(f"calibration.refit.epochs must be at least 1, got {self.epochs}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"calibration.refit.batch_size must be at least 1 or none, got {self.batch_size}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"calibration.refit.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Refitted:
    """A head trained on features, with a summary of the training."""

    weight: Tensor
    num_steps: int
    num_absent: int
    """Number of classes without features; their rows are unchanged."""
    loss_before: float
    loss_after: float

    def summary(self) -> dict[str, SummaryValue]:
        """All fields except the weight."""
        names = ("num_steps", "num_absent", "loss_before", "loss_after")
        return {name: getattr(self, name) for name in names}


def refit(head_Cl: Tensor, features: Tensor, labels: Tensor, config: Refit, order: np.random.Generator) -> Refitted:
    """SGD from the given head, in its dtype:  v ← ρv + ∇f(W),  W ← W − lr·v;  f is the mean loss over a batch.

    Rows of classes without examples contribute to the scores but are not updated.
    """
    if not len(labels):
        raise NothingMeasuredError("no feature was measured, so the head cannot be refitted")
    absent = torch.bincount(labels, minlength=len(head_Cl)) == 0
    examples = Examples(features.to(head_Cl.dtype), labels)
    weight = head_Cl.detach().clone().requires_grad_()
    velocity = torch.zeros_like(head_Cl)
    num_steps = 0
    with one_thread():
        loss_before = _mean_loss(head_Cl.detach(), examples, config.loss)
        for _ in range(config.epochs):
            for rows, targets in examples.epoch(config.batch_size or len(labels), order, device=head_Cl.device):
                value = config.loss(functional.linear(rows, weight), targets)
                (gradient,) = torch.autograd.grad(value, weight)
                with torch.no_grad():
                    gradient[absent] = 0
                    velocity.mul_(config.momentum).add_(gradient)
                    weight.add_(velocity, alpha=-config.lr)
                num_steps += 1
        loss_after = _mean_loss(weight.detach(), examples, config.loss)
    if not bool(weight.isfinite().all()):
        raise CalibrationError(f"the refit of the head diverged; lower calibration.refit.lr, which is {config.lr}")
    return Refitted(
        weight=weight.detach(),
        num_steps=num_steps,
        num_absent=int(absent.sum()),
        loss_before=loss_before,
        loss_after=loss_after,
    )


def _mean_loss(weight: Tensor, examples: Examples, loss: Loss) -> float:
    batches = examples.in_order(2**13, device=weight.device)
    return sum(float(loss(functional.linear(rows, weight), y)) * len(y) for rows, y in batches) / len(examples)
