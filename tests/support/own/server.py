"""A user's own server optimizer: the sign of the mean delta."""

from dataclasses import dataclass

import torch

from spherefed.tensors import Tensors


@dataclass(frozen=True)
class SignStep:
    lr: float = 0.01

    def step(self, delta: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        count = state.get("count", torch.zeros(()))
        return {name: self.lr * d.sign() for name, d in delta.items()}, {"count": count + 1}
