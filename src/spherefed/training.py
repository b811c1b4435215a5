"""The one local training loop: SGD with momentum and weight decay on the model that lies on the bench.

The arithmetic is torch.optim.SGD's to the bit; its object is not used because making one costs more than a small
client's whole round.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from spherefed.corrections import STRAIGHT, Bend
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError
from spherefed.losses import Loss
from spherefed.tensors import Tensors, one
from spherefed.workbench import Workbench, part_of

Gradient = tuple[Tensor, ...] | list[Tensor]
Descent = tuple[Gradient, int | None]
"""The gradient of a step, computed when it is asked for; and, of stacked clients, how many it is for: the first ones,
never more than the time before. None: there is but one client."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """What a client does in one round."""

    lr: float
    """Learning rate of round 0; the schedule lowers it from round to round."""
    epochs: int = 10
    """Passes over the client's data (E in the paper)."""
    head_epochs: int = 0
    """FedRep: passes that train the head alone, before `epochs` that train the encoder alone; 0: both together."""
    batch_size: int = 64
    momentum: float = 0.9
    """Of the local SGD; its velocity starts at zero in every round."""
    weight_decay: float = 1e-5

    def __post_init__(self) -> None:
        if not (self.lr > 0 and isfinite(self.lr)):
            raise ConfigError(f"local.lr must be a positive number, got {self.lr}")
        if self.head_epochs < 0:
            raise ConfigError(f"local.head_epochs must not be negative, got {self.head_epochs}")
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
    """Mean of the loss alone, without what holds a client back or bends it, over the examples seen; 0 if none."""


def train(
    bench: Workbench,
    examples: Examples,
    *,
    local: LocalTraining,
    loss: Loss,
    lr: float,
    order: np.random.Generator,
    params: Tensors | None = None,
    augment: Augment | None = None,
    prox_mu: float = 0.0,
    anchor: Tensors | None = None,
    bend: Bend = STRAIGHT,
) -> Trained:
    """Train in place, as `descend` does, on batches in the given order.

    `prox_mu` is FedProx's μ: the gradient of (μ/2)‖w − anchor‖², anchored at the round's starting point. `params` are
    the tensors to train, by default all; the others keep their values, though running statistics still follow the data.
    With BatchNorm no batch has fewer than two examples (`Examples.epoch`), so one example alone gives no step.
    """
    seen: list[tuple[Tensor, int]] = []
    trained = bench.params if params is None else params
    weights = tuple(trained.values())
    chain = bench.chain if trained is bench.params and bend.penalty is None else None

    def differentiated(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Gradient]:
        if chain is not None:
            return chain.gradient(inputs, labels, loss.slope)
        features, scores = bench.scored(inputs)
        value = loss(scores, labels)
        whole = value if bend.penalty is None else value + bend.penalty(inputs, features)
        return value.detach(), gradient_of(whole, weights)

    def steps() -> Iterator[Descent]:
        for _ in range(local.epochs):
            for inputs, labels in examples.epoch(
                local.batch_size, order, augment=augment, device=bench.device, smallest=bench.smallest_batch
            ):
                value, gradient = differentiated(inputs, labels)
                seen.append((value, labels.shape[0]))
                yield gradient, None

    bench.set_training()
    descend(trained, steps(), local=local, lr=lr, prox_mu=prox_mu, anchor=anchor, linear=bend.linear)
    # Read at the end: no device waits in mid-work.
    loss_sum, num_seen = sum([v.item() * n for v, n in seen]), sum([n for _, n in seen])
    return Trained(len(seen), loss_sum / max(num_seen, 1))


def descend(
    trained: Tensors,
    steps: Iterable[Descent],
    *,
    local: LocalTraining,
    lr: float,
    prox_mu: float = 0.0,
    anchor: Tensors | None = None,
    linear: Tensors | None = None,
) -> None:
    """Once per gradient:  v ← ρv + (∇f(w) + weight_decay·w + μ(w − anchor) + linear),  w ← w − lr·v,  in place.

    Where clients are stacked, tensors have them as their first axis, and those that a gradient is not for stay as
    they are, velocity and all: no gradient is not enough, because momentum and weight decay would move them.
    """
    # The same memory, but what happens to it is no history for autograd.
    values = [w.detach() for w in trained.values()]
    anchors = [anchor[name] for name in trained] if anchor is not None and prox_mu else None
    added = None if linear is None else [linear[name] for name in trained]
    velocity: Gradient | None = None
    for step, active in steps:
        gradient = step
        if active is not None and active < len(values[0]):
            values, velocity = [v[:active] for v in values], velocity and [v[:active] for v in velocity]
        if active is not None and active < len(gradient[0]):
            gradient = [g[:active] for g in gradient]
        if added is not None:
            gradient = torch._foreach_add(gradient, added)
        if anchors is not None:
            gradient = torch._foreach_add(gradient, torch._foreach_sub(values, anchors), alpha=prox_mu)
        if local.weight_decay:
            gradient = torch._foreach_add(gradient, values, alpha=local.weight_decay)
        if not local.momentum:
            velocity = gradient
        elif velocity is None:  # a copy, because autograd may hand out one tensor for two parameters
            velocity = [g.clone() for g in gradient]
        else:
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, gradient)
        torch._foreach_add_(values, velocity, alpha=-lr)


def gradient_of(value: Tensor, weights: tuple[Tensor, ...]) -> list[Tensor]:
    """torch.autograd.grad, zero for weights that had no part in the value, without checks that cost half a pass."""
    start = one(value.dtype, value.device)
    found: tuple[Tensor | None, ...] = _run_backward(
        (value,), (start,), False, False, weights, allow_unreachable=True, accumulate_grad=False
    )
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


_run_backward = torch.autograd.Variable._execution_engine.run_backward


def phases(local: LocalTraining, bench: Workbench) -> list[tuple[LocalTraining, Tensors]]:
    """What is trained one after the other in a round: everything at once, or FedRep's head first, then encoder.

    Collins et al. 2021, Alg. 1; each phase has its own velocity.
    """
    if not local.head_epochs:
        return [(local, bench.params)]
    head_first = replace(local, epochs=local.head_epochs)
    return [(head_first, part_of(bench.params, "head")), (local, part_of(bench.params, "encoder"))]


def effective_steps(num_steps: int, *, momentum: float, shrink: float = 0.0) -> float:
    """‖a_k‖₁ of FedNova (Wang et al. 2020): by how much the local steps add up under momentum ρ and shrink ημ.

    Per step v ← ρv + 1 − ημ·a, a ← a + v, where η is the learning rate and μ FedProx's. Without the proximal term that
    is [τ − ρ(1−ρ^τ)/(1−ρ)] / (1−ρ), without momentum (1 − (1−ημ)^τ)/(ημ), with neither τ. Weight decay is ignored.

    >>> effective_steps(5, momentum=0.0)
    5.0
    """
    rho, velocity, total = momentum, 0.0, 0.0
    if not shrink:
        return (num_steps - rho * (1 - rho**num_steps) / (1 - rho)) / (1 - rho)
    for _ in range(num_steps):
        velocity = rho * velocity + 1 - shrink * total
        total += velocity
    return total
