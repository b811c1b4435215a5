"""The one local training loop: SGD with momentum and weight decay on the model that lies on the bench.

The arithmetic is torch.optim.SGD's to the bit; its object is not used because making one costs more than a small
client's whole round.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError
from spherefed.losses import Loss
from spherefed.tensors import Tensors
from spherefed.workbench import Workbench

Gradient = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """What a client does in one round."""

    lr: float
    """Learning rate of round 0; the schedule lowers it from round to round."""
    epochs: int = 10
    """Passes over the client's data (E in the paper)."""
    batch_size: int = 64
    momentum: float = 0.9
    """Of the local SGD; its velocity starts at zero in every round."""
    weight_decay: float = 1e-5

    def __post_init__(self) -> None:
        if not (self.lr > 0 and isfinite(self.lr)):
            raise ConfigError(f"local.lr must be a positive number, got {self.lr}")
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(
                f"local.epochs and local.batch_size must be at least 1, got {self.epochs} and {self.batch_size}"
            )
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"local.momentum must be in [0, 1), got {self.momentum}")
        if not (self.weight_decay >= 0 and isfinite(self.weight_decay)):
            raise ConfigError(f"local.weight_decay must be a number and not negative, got {self.weight_decay}")


@dataclass(frozen=True, slots=True)
class Trained:
    """What one client's training amounted to; the new weights lie on the bench."""

    num_steps: int
    loss: float
    """Mean over the examples seen; 0 if there were none."""


def train(
    bench: Workbench,
    examples: Examples,
    *,
    local: LocalTraining,
    loss: Loss,
    lr: float,
    order: np.random.Generator,
    augment: Augment | None = None,
    prox_mu: float = 0.0,
    anchor: Tensors | None = None,
) -> Trained:
    """Train in place: v ← ρv + (∇f(w) + weight_decay·w + μ(w − anchor)),  w ← w − lr·v.

    `prox_mu` is FedProx's μ: the gradient of (μ/2)‖w − anchor‖², anchored at the round's starting point.
    """
    classifier, params = bench.classifier, list(bench.params.values())
    anchors = [anchor[name] for name in bench.params] if anchor is not None and prox_mu else None
    velocity: Gradient | None = None
    loss_sum = torch.zeros((), device=bench.device)
    num_steps = num_seen = 0
    classifier.train()
    for _ in range(local.epochs):
        for inputs, labels in examples.epoch(local.batch_size, order, augment=augment, device=bench.device):
            value = loss(classifier(inputs), labels)
            gradient: Gradient = torch.autograd.grad(value, params, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                if anchors is not None:
                    gradient = torch._foreach_add(gradient, torch._foreach_sub(params, anchors), alpha=prox_mu)
                if local.weight_decay:
                    gradient = torch._foreach_add(gradient, params, alpha=local.weight_decay)
                if not local.momentum:
                    velocity = gradient
                elif velocity is None:  # a copy, because autograd may hand out one tensor for two parameters
                    velocity = [g.clone() for g in gradient]
                else:
                    torch._foreach_mul_(velocity, local.momentum)
                    torch._foreach_add_(velocity, gradient)
                torch._foreach_add_(params, velocity, alpha=-lr)
                loss_sum += value.detach() * len(labels)
            num_steps += 1
            num_seen += len(labels)
    return Trained(num_steps, float(loss_sum) / max(num_seen, 1))


def effective_steps(num_steps: int, *, momentum: float) -> float:
    """‖a_k‖₁ of FedNova (Wang et al. 2020): by how much the local steps, carried on by momentum ρ, add up.

    Per step c ← ρc + 1, a ← a + c, hence [τ − ρ(1−ρ^τ)/(1−ρ)] / (1−ρ); without momentum it is τ.

    >>> effective_steps(5, momentum=0.0)
    5.0
    """
    rho = momentum
    return (num_steps - rho * (1 - rho**num_steps) / (1 - rho)) / (1 - rho)
