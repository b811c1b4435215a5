"""The one local training loop: SGD with momentum and weight decay, for one client or for a group of stacked clients.

The arithmetic is torch.optim.SGD's to the bit. Its object is not used because creating one costs more than a small
client's whole round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spherefed.acceleration.gradients import Gradients, TensorList
from spherefed.client.corrections import NO_CORRECTION, GradientCorrection
from spherefed.client.local_model import LocalModel
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError
from spherefed.field_types import check_types
from spherefed.losses import Loss
from spherefed.messages import part_of
from spherefed.rng import Purpose, stream
from spherefed.tensors import Tensors

Orders = Sequence[np.random.Generator]
"""For each client the stream that draws its batches."""


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
    """Examples per step (B in the paper)."""
    momentum: float = 0.9
    """Of the local SGD; its velocity starts at zero in every round."""
    weight_decay: float = 1e-5
    """Times the parameters, added to the gradient, as in `torch.optim.SGD`."""

    def __post_init__(self) -> None:
        check_types(self, "local")
        if not (self.lr > 0 and isfinite(self.lr)):
            raise ConfigError(f"local.lr must be a positive number, got {self.lr}")
        if self.head_epochs < 0:
            raise ConfigError(f"local.head_epochs must not be negative, got {self.head_epochs}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"local.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"local.momentum must be in [0, 1), got {self.momentum}")
        if not (self.weight_decay >= 0 and isfinite(self.weight_decay)):
            raise ConfigError(f"local.weight_decay must be a number and not negative, got {self.weight_decay}")


@dataclass(frozen=True, slots=True)
class Trained:
    """What one client's training amounted to; the new weights are in the trained tensors."""

    num_steps: int
    effective_steps: float
    """‖a_k‖₁ of FedNova."""
    loss: float
    """Mean over the examples seen of the loss alone, without proximal and correction terms; 0 without examples."""


def train(
    local_model: LocalModel,
    examples: Sequence[Examples],
    orders: Orders,
    *,
    local: LocalTraining,
    loss: Loss,
    lr: float,
    stacked: bool = False,
    trained: Tensors | None = None,
    augment: Augment | None = None,
    prox_mu: float = 0.0,
    anchor: Tensors | None = None,
    correction: GradientCorrection = NO_CORRECTION,
) -> list[Trained]:
    """Train in place and return one result per client: per batch one gradient and one `apply_sgd`.

    One client, or with `stacked` a group of them, most examples first; `orders` draws each client's batches. `trained`
    are the tensors to update, by default all; running statistics are updated in any case.
    `correction.linear` is a constant that is added to every gradient (SCAFFOLD, FedDyn).
    `prox_mu` is FedProx's μ: adds the gradient of (μ/2)‖w − anchor‖², anchored at the round's start.
    """
    gradients: Gradients | None = local_model.stacked if stacked else local_model.gradients
    assert gradients is not None, "this model was not made for stacked clients"
    trained = gradients.params if trained is None else trained
    value_and_grad = gradients.value_and_grad(loss, trained, correction.penalty)
    # The same memory as the trained tensors, but autograd does not record the updates.
    weights = [w.detach() for w in trained.values()]
    anchors = [anchor[name] for name in trained] if anchor is not None and prox_mu else None
    linear = None if correction.linear is None else [correction.linear[name] for name in trained]
    velocity: TensorList | None = None
    losses: list[tuple[Tensor, Sequence[int]]] = []
    for batch in (_stacked_batches if stacked else _batches)(local_model, examples, orders, local, augment):
        value, gradient = value_and_grad(batch.inputs, batch.labels, batch.weights)
        losses.append((value, batch.sizes))
        if stacked:
            weights, velocity, gradient = _first_clients(len(batch.sizes), weights, velocity, gradient)
        gradient = _with_extra_terms(gradient, weights, linear, anchors, prox_mu, local.weight_decay)
        velocity = apply_sgd(weights, gradient, velocity, lr=lr, momentum=local.momentum)
    return _results(losses, len(examples), momentum=local.momentum, shrink=lr * prox_mu)


def apply_sgd(
    weights: TensorList,
    gradient: TensorList,
    velocity: TensorList | None,
    *,
    lr: float,
    momentum: float,
) -> TensorList:
    """v ← ρv + g,  w ← w − lr·v,  in place; returns v."""
    if not momentum:
        velocity = gradient
    elif velocity is None:  # a copy, because autograd may return one tensor for two parameters
        velocity = [g.clone() for g in gradient]
    else:
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, gradient)
    torch._foreach_add_(weights, velocity, alpha=-lr)
    return velocity


def _with_extra_terms(
    gradient: TensorList,
    weights: TensorList,
    linear: TensorList | None,
    anchors: TensorList | None,
    prox_mu: float,
    weight_decay: float,
) -> TensorList:
    """∇f(w) + linear + μ(w − anchor) + weight_decay·w; anchors broadcast over the clients of a group."""
    if linear is not None:
        gradient = torch._foreach_add(gradient, linear)
    if anchors is not None:
        gradient = torch._foreach_add(gradient, torch._foreach_sub(weights, anchors), alpha=prox_mu)
    if weight_decay:
        gradient = torch._foreach_add(gradient, weights, alpha=weight_decay)
    return gradient


def _first_clients(
    num: int, weights: list[Tensor], velocity: TensorList | None, gradient: TensorList
) -> tuple[list[Tensor], TensorList | None, TensorList]:
    """The tensors of the clients that still have a batch; the others keep their weights and velocity.

    A zero gradient would not do, because momentum and weight decay would still move a finished client.
    """
    if num < len(weights[0]):
        weights, velocity = [w[:num] for w in weights], [v[:num] for v in velocity] if velocity else None
    if num < len(gradient[0]):
        gradient = [g[:num] for g in gradient]
    return weights, velocity, gradient


def _results(
    losses: list[tuple[Tensor, Sequence[int]]], num_clients: int, *, momentum: float, shrink: float
) -> list[Trained]:
    """One result per client from the losses and batch sizes; read once, so that no step waits for the device."""
    steps = [list(zip(value.reshape(-1).tolist(), sizes, strict=True)) for value, sizes in losses]
    results = []
    for index in range(num_clients):
        own = [step[index] for step in steps if index < len(step)]
        mean_loss = sum([value * n for value, n in own]) / max(sum([n for _, n in own]), 1)
        results.append(Trained(len(own), effective_steps(len(own), momentum=momentum, shrink=shrink), mean_loss))
    return results


class _Batch(NamedTuple):
    inputs: Tensor
    labels: Tensor
    weights: Tensor | None
    """(K, n) for a group: 1/n_k for the n_k examples of client k, 0 for padding."""
    sizes: Sequence[int]
    """Number of examples of each client."""


def _batches(
    local_model: LocalModel,
    examples: Sequence[Examples],
    orders: Orders,
    local: LocalTraining,
    augment: Augment | None,
) -> Iterator[_Batch]:
    """All batches of one client in a round, in order; the model is put into training mode first."""
    local_model.set_training()
    (own,), (order,), device = examples, orders, local_model.device
    for _ in range(local.epochs):
        for inputs, labels in own.epoch(
            local.batch_size, order, augment=augment, device=device, min_batch_size=local_model.smallest_batch
        ):
            yield _Batch(inputs, labels, None, (labels.shape[0],))


def _stacked_batches(
    local_model: LocalModel,
    examples: Sequence[Examples],
    orders: Orders,
    local: LocalTraining,
    augment: Augment | None,
) -> Iterator[_Batch]:
    """The same for a group, one step of every client at a time. Short batches are padded with examples of weight 0.

    They are the client's own examples, because another client's might not be finite, and 0 · NaN is NaN.
    """
    data, device = examples[0], local_model.device
    size, epochs = local.batch_size, local.epochs
    indices = [own.shuffled_indices(size, order, epochs) for own, order in zip(examples, orders, strict=True)]
    while chosen := list(takewhile(len, (next(batches, _NO_BATCH) for batches in indices))):
        sizes = [len(positions) for positions in chosen]
        num, longest = len(sizes), max(sizes)
        padded_Kn = pad_sequence(chosen, batch_first=True, padding_value=-1)
        positions = torch.where(padded_Kn < 0, padded_Kn[:, :1], padded_Kn).flatten()
        inputs, labels = data.inputs.index_select(0, positions), data.labels.index_select(0, positions).to(device)
        if augment is not None:
            per_client = inputs.view(num, longest, *inputs.shape[1:])
            for own, size, order in zip(per_client, sizes, orders, strict=False):
                own[:size] = augment(own[:size], order)
        inputs = data.prepared(inputs, device).view(num, longest, *inputs.shape[1:])
        sizes_K1 = torch.tensor(sizes, device=device)[:, None]
        weights_Kn = (torch.arange(longest, device=device) < sizes_K1) / sizes_K1.to(local_model.dtype)
        yield _Batch(inputs, labels.view(num, longest), weights_Kn, sizes)


_NO_BATCH = torch.zeros(0, dtype=torch.int64)


ORDERS_AT_ONCE = 16
"""Clients whose streams are created together: creating each between two trainings made rounds of tiny clients 6 %
slower, because numpy's code was evicted from the processor's caches in between."""


def batch_orders(seed: int, round_index: int, clients: Sequence[int]) -> Iterator[np.random.Generator]:
    """For each client the stream that draws its batches in this round."""
    for start in range(0, len(clients), ORDERS_AT_ONCE):
        block = clients[start : start + ORDERS_AT_ONCE]
        yield from [stream(seed, Purpose.BATCHES, round_index, client) for client in block]


def head_then_encoder(local: LocalTraining, params: Tensors) -> list[tuple[LocalTraining, Tensors]]:
    """What FedRep trains one after the other in a round (Collins et al. 2021, Alg. 1), each from zero velocity."""
    head_first = replace(local, epochs=local.head_epochs)
    return [(head_first, part_of(params, "head")), (local, part_of(params, "encoder"))]


def effective_steps(num_steps: int, *, momentum: float, shrink: float = 0.0) -> float:
    """‖a_k‖₁ of FedNova (Wang et al. 2020): total weight of the local gradients, with momentum ρ and shrinkage ημ.

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
