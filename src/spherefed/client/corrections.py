"""Drift corrections as values: SCAFFOLD, FedDyn and MOON.

A correction has four pure parts, and the round loop calls the same four for all of them: how it changes a client's
gradient (`start`), what the client keeps and sends beside its delta (`finish`), what the server sends beside the model
(`broadcast`), and what the server adds to its own step (`server_step`). State goes in and comes out as tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from spherefed.acceleration.gradients import Penalty
from spherefed.client.local_model import LocalModel
from spherefed.errors import ConfigError
from spherefed.messages import ModelState, Train
from spherefed.nn.layers import eval_mode
from spherefed.tensors import Tensors


@dataclass(frozen=True, slots=True)
class GradientCorrection:
    """How a correction changes the gradient of one client in one round; not at all by default."""

    linear: Tensors | None = None
    """Added to every gradient, by parameter."""
    penalty: Penalty | None = None
    """Added to the loss."""


NO_CORRECTION = GradientCorrection()


@dataclass(frozen=True, slots=True)
class LocalResult:
    """A client's finished round, as a correction sees it."""

    local_model: LocalModel
    delta: Tensors
    total_step: float
    """lr · ‖a_k‖₁: the delta divided by this is minus the mean gradient; 0 without a step."""
    prox_mu: float


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Control variates (Karimireddy et al. 2020, option II): gradients g_k(w) + c − c_k.

    c_k ← c_k − c + (x − y_k)/(K·lr) on the client, which sends the difference; c ← c + |S|/N · mean of differences on
    the server. Deviation: with local momentum the number of steps K becomes ‖a_k‖₁ of FedNova, so that c_k remains
    a mean of gradients; without it the two are the same.
    """

    kind: ClassVar[str] = "scaffold"

    def start(self, local_model: LocalModel, request: Train, client_state: Tensors) -> GradientCorrection:
        return GradientCorrection(
            linear={n: c - client_state[n] if client_state else c for n, c in request.extra.items()}
        )

    def finish(self, result: LocalResult, request: Train, client_state: Tensors) -> tuple[Tensors, Tensors]:
        c = request.extra
        if not result.total_step:
            return client_state, {n: torch.zeros_like(t) for n, t in c.items()}
        change = {n: -d / result.total_step - c[n] for n, d in result.delta.items()}
        return {n: client_state[n] + t if client_state else t for n, t in change.items()}, change

    def broadcast(self, model: ModelState, correction_state: Tensors) -> Tensors:
        return correction_state or {n: torch.zeros_like(p) for n, p in model.params.items()}

    def server_step(
        self, update: Tensors, delta: Tensors, extra: Tensors, correction_state: Tensors, participation: float
    ) -> tuple[Tensors, Tensors]:
        return update, {
            n: participation * e + (correction_state[n] if correction_state else 0.0) for n, e in extra.items()
        }


@dataclass(frozen=True, slots=True)
class DynamicRegularizer:
    """FedDyn (Acar et al. 2021): gradients g_k(w) + d_k + α(w − x), where α is the algorithm's `prox_mu`.

    d_k ← d_k + αΔ_k on the client (d_k is minus the paper's ∇L_k). On the server h ← h + |S|/N · Δ and
    x⁺ = x + Δ + h (h is the paper's −h/α, in which α drops out).
    """

    kind: ClassVar[str] = "feddyn"

    def start(self, local_model: LocalModel, request: Train, client_state: Tensors) -> GradientCorrection:
        return GradientCorrection(linear=client_state or None)

    def finish(self, result: LocalResult, request: Train, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return {n: result.prox_mu * d + (client_state[n] if client_state else 0.0) for n, d in result.delta.items()}, {}

    def broadcast(self, model: ModelState, correction_state: Tensors) -> Tensors:
        return {}

    def server_step(
        self, update: Tensors, delta: Tensors, extra: Tensors, correction_state: Tensors, participation: float
    ) -> tuple[Tensors, Tensors]:
        h = {n: participation * d + (correction_state[n] if correction_state else 0.0) for n, d in delta.items()}
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
    """Weight of the contrastive term."""
    temperature: float = 0.5
    """τ of the contrastive term."""

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and self.temperature > 0):
            raise ConfigError(
                f"algorithm.correction: mu must not be negative and temperature must be positive, "
                f"got {self.mu} and {self.temperature}"
            )

    def start(self, local_model: LocalModel, request: Train, client_state: Tensors) -> GradientCorrection:
        if not client_state:
            return NO_CORRECTION
        encoder = local_model.classifier.encoder
        # The round's model, which is loaded now, and the client's model of its last round.
        states = [_encoder_state(given) for given in (local_model.full_state(), client_state)]

        def contrast(inputs: Tensor, features: Tensor) -> Tensor:
            with eval_mode(encoder), torch.no_grad():
                others = [functional_call(encoder, state, (inputs,)) for state in states]
            similarity = torch.stack([functional.cosine_similarity(features, other) for other in others], dim=1)
            positive = torch.zeros(len(features), dtype=torch.int64, device=features.device)
            return self.mu * functional.cross_entropy(similarity / self.temperature, positive)

        return GradientCorrection(penalty=contrast)

    def finish(self, result: LocalResult, request: Train, client_state: Tensors) -> tuple[Tensors, Tensors]:
        return result.local_model.full_state(), {}

    def broadcast(self, model: ModelState, correction_state: Tensors) -> Tensors:
        return {}

    def server_step(
        self, update: Tensors, delta: Tensors, extra: Tensors, correction_state: Tensors, participation: float
    ) -> tuple[Tensors, Tensors]:
        return update, {}


class OwnCorrection(Protocol):
    """A user's drift correction: a frozen dataclass with the four parts that the module's docstring describes."""

    def start(self, local_model: LocalModel, request: Train, client_state: Tensors) -> GradientCorrection: ...

    def finish(self, result: LocalResult, request: Train, client_state: Tensors) -> tuple[Tensors, Tensors]: ...

    def broadcast(self, model: ModelState, correction_state: Tensors) -> Tensors: ...

    def server_step(
        self, update: Tensors, delta: Tensors, extra: Tensors, correction_state: Tensors, participation: float
    ) -> tuple[Tensors, Tensors]: ...


Correction = Scaffold | DynamicRegularizer | ModelContrastive | OwnCorrection


def _encoder_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix("encoder."): t for n, t in tensors.items() if n.startswith("encoder.")}
