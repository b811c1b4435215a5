"""Client drift corrected by what is remembered: SCAFFOLD, FedDyn and MOON as values, beside `Uncorrected`.

A correction has four pure parts, and the round loop calls the same four for everybody: what bends a client's descent
(`start`), what the client keeps and sends beside its delta (`finish`), what the server sends beside the model
(`broadcast`) and what it adds to its own step (`carry`). Whatever is remembered goes in and comes out as tensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from spherefed.errors import ConfigError
from spherefed.messages import ModelState, Train
from spherefed.tensors import Tensors
from spherefed.workbench import Workbench

Penalty = Callable[[Tensor, Tensor], Tensor]
"""(inputs, their features) → what a step descends on beside the loss."""


@dataclass(frozen=True, slots=True)
class Bend:
    """How a client's descent is bent in one round; nothing by default."""

    linear: Tensors | None = None
    """Added to every gradient, by parameter."""
    penalty: Penalty | None = None


STRAIGHT = Bend()


@dataclass(frozen=True, slots=True)
class Work:
    """A client's finished round, as far as a correction looks at it."""

    bench: Workbench
    delta: Tensors
    reach: float
    """lr · ‖a_k‖₁: the delta divided by this is minus the mean gradient; 0 if there was no step."""
    prox_mu: float


Carried = tuple[Tensors, Tensors]
"""The server's update, and what the correction carries into the next round."""


@dataclass(frozen=True, slots=True)
class Uncorrected:
    """Nothing is added and nothing remembered."""

    kind: ClassVar[str] = "none"

    def start(self, bench: Workbench, request: Train, memory: Tensors) -> Bend:
        return STRAIGHT

    def finish(self, work: Work, request: Train, memory: Tensors) -> tuple[Tensors, Tensors]:
        """What the client keeps, and what it sends beside its delta."""
        return {}, {}

    def broadcast(self, model: ModelState, carried: Tensors) -> Tensors:
        return {}

    def carry(self, update: Tensors, delta: Tensors, extra: Tensors, carried: Tensors, participation: float) -> Carried:
        return update, {}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Control variates (Karimireddy et al. 2020, option II): gradients g_k(w) + c − c_k.

    c_k ← c_k − c + (x − y_k)/(K·lr) on the client, which sends the difference; c ← c + |S|/N · mean of differences on
    the server. Deviation: with local momentum the number of steps K becomes ‖a_k‖₁ of FedNova, so that c_k remains
    a mean of gradients; without it the two are the same.
    """

    kind: ClassVar[str] = "scaffold"

    def start(self, bench: Workbench, request: Train, memory: Tensors) -> Bend:
        return Bend(linear={n: c - memory[n] if memory else c for n, c in request.extra.items()})

    def finish(self, work: Work, request: Train, memory: Tensors) -> tuple[Tensors, Tensors]:
        c = request.extra
        if not work.reach:
            return memory, {n: torch.zeros_like(t) for n, t in c.items()}
        change = {n: -d / work.reach - c[n] for n, d in work.delta.items()}
        return {n: memory[n] + t if memory else t for n, t in change.items()}, change

    def broadcast(self, model: ModelState, carried: Tensors) -> Tensors:
        return carried or {n: torch.zeros_like(p) for n, p in model.params.items()}

    def carry(self, update: Tensors, delta: Tensors, extra: Tensors, carried: Tensors, participation: float) -> Carried:
        return update, {n: participation * e + (carried[n] if carried else 0.0) for n, e in extra.items()}


@dataclass(frozen=True, slots=True)
class DynamicRegularizer:
    """FedDyn (Acar et al. 2021): gradients g_k(w) + d_k + α(w − x), where α is the algorithm's `prox_mu`.

    d_k ← d_k + αΔ_k on the client (d_k is minus the paper's ∇L_k). On the server h ← h + |S|/N · Δ and
    x⁺ = x + Δ + h (h is the paper's −h/α, in which α drops out).
    """

    kind: ClassVar[str] = "feddyn"

    def start(self, bench: Workbench, request: Train, memory: Tensors) -> Bend:
        return Bend(linear=memory or None)

    def finish(self, work: Work, request: Train, memory: Tensors) -> tuple[Tensors, Tensors]:
        return {n: work.prox_mu * d + (memory[n] if memory else 0.0) for n, d in work.delta.items()}, {}

    def broadcast(self, model: ModelState, carried: Tensors) -> Tensors:
        return {}

    def carry(self, update: Tensors, delta: Tensors, extra: Tensors, carried: Tensors, participation: float) -> Carried:
        h = {n: participation * d + (carried[n] if carried else 0.0) for n, d in delta.items()}
        return {n: u + h[n] for n, u in update.items()}, h


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelContrastive:
    """MOON (Li et al. 2021): loss − μ log[e^{s(z, z_glob)/τ} / (e^{s(z, z_glob)/τ} + e^{s(z, z_prev)/τ})], s = cosine.

    z_glob and z_prev are the features that the round's model and the client's own last model give for the same batch.
    Deviation: features are compared directly, without MOON's projection head; both models are in eval mode. In a
    client's first round there is no last model and the term, then a constant, is left out.
    """

    kind: ClassVar[str] = "moon"
    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and self.temperature > 0):
            raise ConfigError(
                f"algorithm.correction: mu must not be negative and temperature must be positive, "
                f"got {self.mu} and {self.temperature}"
            )

    def start(self, bench: Workbench, request: Train, memory: Tensors) -> Bend:
        if not memory:
            return STRAIGHT
        encoder = bench.classifier.encoder
        states = [_encoder_state(given) for given in (bench.copy(), memory)]  # the round's model, as it lies there now

        def contrast(inputs: Tensor, features: Tensor) -> Tensor:
            encoder.eval()
            with torch.no_grad():
                others = [functional_call(encoder, state, (inputs,)) for state in states]
            encoder.train()
            similarity = torch.stack([functional.cosine_similarity(features, other) for other in others], dim=1)
            positive = torch.zeros(len(features), dtype=torch.int64, device=features.device)
            return self.mu * functional.cross_entropy(similarity / self.temperature, positive)

        return Bend(penalty=contrast)

    def finish(self, work: Work, request: Train, memory: Tensors) -> tuple[Tensors, Tensors]:
        return work.bench.copy(), {}

    def broadcast(self, model: ModelState, carried: Tensors) -> Tensors:
        return {}

    def carry(self, update: Tensors, delta: Tensors, extra: Tensors, carried: Tensors, participation: float) -> Carried:
        return update, {}


Correction = Uncorrected | Scaffold | DynamicRegularizer | ModelContrastive


def _encoder_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix("encoder."): t for n, t in tensors.items() if n.startswith("encoder.")}
