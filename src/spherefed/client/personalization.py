"""Personalization: how a client adapts the global model before it is evaluated on its own held-out examples.

The protocol is the paper's App. B: data pooled, a part of every client's own data held out, accuracies averaged over
clients. The private part of a model (LG-FedAvg, FedRep) is client state and is not handled here.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import torch

from spherefed.calibration.ffc import Statistics, statistics
from spherefed.calibration.solution import solve
from spherefed.client.evaluation import BATCH_SIZE
from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining, train
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError
from spherefed.losses import Loss
from spherefed.messages import Part, part_of
from spherefed.tensors import Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class FineTune:
    """Train a part of the model on the client's own data: FedAvg + fine-tuning, BABU, SphereFed + local SGD.

    Batch size, momentum and weight decay are the experiment's local ones. A fixed head is trained like a learned one.
    """

    kind: ClassVar[str] = "fine-tune"
    part: Part = "head"
    """The part that is trained."""
    epochs: int = 5
    """Passes over the client's data."""
    lr: float = 0.01
    """Learning rate, constant."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.lr > 0:
            raise ConfigError(
                f"personalization: epochs must be at least 1 and lr positive, got {self.epochs} and {self.lr}"
            )

    def apply(self, context: "PersonalizationContext", received: Tensors) -> None:
        local_model, head = context.local_model, context.local_model.classifier.head
        tensors = part_of({**local_model.params, "head.weight": head.weight}, self.part)
        assert context.local is not None
        local = replace(context.local, epochs=self.epochs, head_epochs=0)
        head.weight.requires_grad_(True)
        try:
            train(
                local_model,
                [context.examples],
                [context.order],
                local=local,
                loss=context.loss,
                lr=self.lr,
                trained=tensors,
                augment=context.augment,
            )
        finally:
            head.weight.requires_grad_(head.learned)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFfc:
    """SphereFed, Eq. 7 on the client's own training data, with the global encoder; nothing is trained."""

    kind: ClassVar[str] = "local-ffc"
    ridge: float = 0.0
    """λ of Eq. 12."""

    def __post_init__(self) -> None:
        _check_not_negative("ridge", self.ridge)

    def apply(self, context: "PersonalizationContext", received: Tensors) -> None:
        own = context.statistics()
        if own.num_examples:
            context.set_head(own.solve(self.ridge).weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendedFfc:
    """W_k = (V_k + γV + λI)⁻¹(U_k + γU): the client's own statistics and a share γ of those of all clients.

    γ = 0 is `LocalFfc`, γ → ∞ the global FFC. The sums V and U are sent to every client and count as traffic.
    """

    kind: ClassVar[str] = "blended-ffc"
    gamma: float = 0.1
    """γ, the share of the statistics of all clients."""
    ridge: float = 0.0
    """λ of Eq. 12."""

    def __post_init__(self) -> None:
        _check_not_negative("ridge", self.ridge)
        _check_not_negative("gamma", self.gamma)

    def apply(self, context: "PersonalizationContext", received: Tensors) -> None:
        own, everybody = context.statistics(), Statistics.from_tensors(received)
        gram_ll = own.gram() + self.gamma * everybody.gram()
        cross_lC = own.cross() + self.gamma * everybody.cross()
        if own.num_examples or self.gamma:
            noise = own.noise_floor + self.gamma * everybody.noise_floor
            context.set_head(solve(gram_ll, cross_lC, self.ridge, noise=noise).weight)


class OwnPersonalization(Protocol):
    """A user's personalization: a frozen dataclass."""

    def apply(self, context: "PersonalizationContext", received: Tensors) -> None:
        """Change the local model of the context in place."""
        ...


Personalization = FineTune | LocalFfc | BlendedFfc | OwnPersonalization


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class PersonalizationContext:
    """Inputs of a personalization: the local model and the client's own training data."""

    local_model: LocalModel
    examples: Examples
    local: LocalTraining | None
    loss: Loss
    order: np.random.Generator
    augment: Augment | None

    def statistics(self) -> Statistics:
        """V_k and U_k (SphereFed, Eq. 9) of the local model."""
        batches = self.examples.in_order(BATCH_SIZE, device=self.local_model.device)
        return statistics(self.local_model.classifier, batches)

    def set_head(self, weight: torch.Tensor) -> None:
        with torch.no_grad():
            self.local_model.classifier.head.weight.copy_(weight)


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"personalization.{name} must not be negative, got {value}")
