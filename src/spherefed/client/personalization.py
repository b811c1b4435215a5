"""What a client makes of the global model before it is evaluated on the client's own held-out examples.

The protocol is the paper's App. B: data pooled, a part of every client's own data held out, accuracies averaged over
clients. A client's own part of the model (LG-FedAvg, FedRep) is its memory and no business of this file.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from spherefed.calibration.ffc import Statistics, statistics
from spherefed.calibration.solution import solve
from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError
from spherefed.evaluation import BATCH_SIZE
from spherefed.losses import Loss
from spherefed.tensors import Tensors
from spherefed.training import LocalTraining, train
from spherefed.workbench import Part, Workbench, part_of


@dataclass(frozen=True, kw_only=True, slots=True)
class FineTune:
    """Train a part of the model on the client's own data: FedAvg + fine-tuning, BABU, SphereFed + local SGD.

    Batch size, momentum and weight decay are the experiment's local ones. A fixed head is trained like a learned one.
    """

    kind: ClassVar[str] = "fine-tune"
    part: Part = "head"
    epochs: int = 5
    lr: float = 0.01

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.lr > 0:
            raise ConfigError(
                f"personalization: epochs must be at least 1 and lr positive, got {self.epochs} and {self.lr}"
            )

    def apply(self, at: "Place", received: Tensors) -> None:
        bench, head = at.bench, at.bench.classifier.head
        tensors = part_of({**bench.params, "head.weight": head.weight}, self.part)
        local = replace(at.local, epochs=self.epochs, head_epochs=0)
        head.weight.requires_grad_(True)
        try:
            train(
                bench,
                at.examples,
                params=tensors,
                local=local,
                loss=at.loss,
                lr=self.lr,
                order=at.order,
                augment=at.augment,
            )
        finally:
            head.weight.requires_grad_(head.learned)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFfc:
    """SphereFed, Eq. 7 on the client's own training data over the global encoder: no training at all."""

    kind: ClassVar[str] = "local-ffc"
    ridge: float = 0.0
    """λ of Eq. 12."""

    def __post_init__(self) -> None:
        _check_not_negative("ridge", self.ridge)

    def apply(self, at: "Place", received: Tensors) -> None:
        own = at.statistics()
        if own.num_examples:
            at.set_head(own.solve(self.ridge).weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendedFfc:
    """W_k = (V_k + γV + λI)⁻¹(U_k + γU): the client's own statistics and a share γ of everybody's.

    γ = 0 is `LocalFfc`, γ → ∞ the global FFC. The sums V and U are sent to every client and count as traffic.
    """

    kind: ClassVar[str] = "blended-ffc"
    gamma: float = 0.1
    ridge: float = 0.0

    def __post_init__(self) -> None:
        _check_not_negative("ridge", self.ridge)
        _check_not_negative("gamma", self.gamma)

    def apply(self, at: "Place", received: Tensors) -> None:
        own, everybody = at.statistics(), Statistics.from_tensors(received)
        gram_ll = own.gram() + self.gamma * everybody.gram()
        cross_lC = own.cross() + self.gamma * everybody.cross()
        if own.num_examples or self.gamma:
            at.set_head(solve(gram_ll, cross_lC, self.ridge).weight)


Personalization = FineTune | LocalFfc | BlendedFfc


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Place:
    """Where a model is made personal: the bench it lies on and the client's own training data."""

    bench: Workbench
    examples: Examples
    local: LocalTraining
    loss: Loss
    order: np.random.Generator
    augment: Augment | None

    def statistics(self) -> Statistics:
        """V_k and U_k (SphereFed, Eq. 9) of the model on the bench."""
        batches = self.examples.in_order(BATCH_SIZE, device=self.bench.device)
        return statistics(self.bench.classifier, batches)

    def set_head(self, weight: torch.Tensor) -> None:
        with torch.no_grad():
            self.bench.classifier.head.weight.copy_(weight)


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"personalization.{name} must not be negative, got {value}")
