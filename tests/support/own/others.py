"""The other components of a user: head, schedule, correction, personalization, data."""

from dataclasses import dataclass

import numpy as np
import torch

from spherefed.client.corrections import GradientCorrection
from spherefed.nn.heads import ClassifierHead


@dataclass(frozen=True)
class Identity:
    """The head whose rows are the first unit vectors."""

    def build(self, num_classes, dim, seed):
        return ClassifierHead(torch.eye(num_classes, dim), learned=False)


@dataclass(frozen=True)
class Halving:
    every: int = 2

    def factor(self, round_index, rounds):
        return 0.5 ** (round_index // self.every)


@dataclass(frozen=True)
class Decay:
    """Subtract a share of the round's model from the gradient, and count the rounds of a client."""

    strength: float = 0.01

    def start(self, local_model, request, client_state):
        return GradientCorrection(linear={n: self.strength * p for n, p in request.model.params.items()})

    def finish(self, result, request, client_state):
        return {"rounds": client_state.get("rounds", torch.zeros(())) + 1}, {}

    def broadcast(self, model, correction_state):
        return {}

    def server_step(self, update, delta, extra, correction_state, participation):
        return update, {}


@dataclass(frozen=True)
class Shrink:
    factor: float = 0.5

    def apply(self, context, received):
        context.set_head(self.factor * context.local_model.classifier.head.weight)


def two_blobs():
    """Features and text labels."""
    rng = np.random.default_rng(0)
    labels = np.array(["left", "right"] * 60)
    return rng.normal(size=(120, 5)) + 3.0 * (labels == "right")[:, None], labels


@dataclass
class NotFrozen:
    every: int = 2

    def factor(self, round_index, rounds):
        return 1.0


@dataclass(frozen=True)
class Forgetful:
    clients: int = 2

    def split(self, labels: np.ndarray, num_classes: int, rng: np.random.Generator) -> list[np.ndarray]:
        return [np.array([0]), np.array([0, 1])]
