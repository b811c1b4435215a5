"""What the server does with the combined delta: pure steps `(delta, memory) → (update, memory)`, on parameters only."""

from dataclasses import dataclass
from typing import ClassVar

from spherefed.errors import ConfigError
from spherefed.tensors import Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSgd:
    """v ← βv + Δ, update = lr · v: the convention of torch.optim.SGD, without a factor 1 − β.

    lr 1 and momentum 0 is plain averaging.
    """

    kind: ClassVar[str] = "sgd"
    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"algorithm.server: lr must be positive and momentum in [0, 1), got {self.lr} and {self.momentum}"
            )

    def step(self, delta: Tensors, memory: Tensors) -> tuple[Tensors, Tensors]:
        velocity = delta
        if self.momentum and memory:
            velocity = {name: self.momentum * memory[name] + d for name, d in delta.items()}
        update = velocity if self.lr == 1.0 else {name: self.lr * v for name, v in velocity.items()}
        return update, velocity if self.momentum else {}


ServerOptimizer = ServerSgd
