"""The classifier's last layer, chosen by value: learned, or fixed to rows that everybody derives from the seed.

No head has a bias. A fixed head is a buffer, not a parameter: it takes no gradient and is never sent in a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spherefed.errors import ConfigError
from spherefed.nn import prototypes
from spherefed.rng import Purpose, stream


class Linear(nn.Module):
    """Scores = W z, with W of shape C×l a parameter (learned) or a buffer (fixed).

    A fixed W may be None until the feature dimension is known: no parameter is missing in the meantime.
    """

    weight: Tensor

    def __init__(self, weight: Tensor | None, *, learned: bool) -> None:
        super().__init__()
        self.learned = learned
        if learned and weight is not None:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)

    @property
    def is_open(self) -> bool:
        """Whether the feature dimension is still to be found."""
        return self._buffers.get("weight", self) is None

    def coherence(self) -> float:
        """The largest cosine between two different rows: how well the classes' directions are kept apart."""
        return prototypes.coherence(self.weight.detach())

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight)

    def extra_repr(self) -> str:
        shape = "open" if self.is_open else tuple(self.weight.shape)
        return f"{shape}, {'learned' if self.learned else 'fixed'}"

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if self.is_open and f"{prefix}weight" in state_dict:
            self.weight = torch.empty_like(state_dict[f"{prefix}weight"])
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True, slots=True)
class Learned:
    """Trained and averaged with the rest; starts where torch.nn.Linear would."""

    kind: ClassVar[str] = "learned"

    def build(self, num_classes: int, dim: int, seed: int) -> Linear:
        return Linear(_rounded(prototypes.uniform(num_classes, dim, stream(seed, Purpose.HEAD))), learned=True)


@dataclass(frozen=True, slots=True)
class FixedRandom:
    """Random rows that nobody trains: Fix(R) of Table 3, the head of BABU."""

    kind: ClassVar[str] = "random"

    def build(self, num_classes: int, dim: int, seed: int) -> Linear:
        return Linear(_rounded(prototypes.uniform(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False)


@dataclass(frozen=True, slots=True)
class Orthonormal:
    """Orthonormal rows that nobody trains: Fix(OU), SphereFed's own (Eq. 4)."""

    kind: ClassVar[str] = "orthonormal"

    def build(self, num_classes: int, dim: int, seed: int) -> Linear:
        return Linear(_rounded(prototypes.orthonormal(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False)


@dataclass(frozen=True, slots=True)
class SimplexEtf:
    """Rows of a simplex equiangular tight frame that nobody trains; C ≤ l + 1, every cosine is −1/(C−1)."""

    kind: ClassVar[str] = "etf"

    def build(self, num_classes: int, dim: int, seed: int) -> Linear:
        return Linear(_rounded(prototypes.simplex(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tammes:
    """Unit rows that a search has pushed apart and nobody trains (Table 10; Mettes et al. 2019); serves C > l too."""

    kind: ClassVar[str] = "tammes"
    steps: int = 10_000
    lr: float = 0.1
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"model.head.steps must not be negative, got {self.steps}")
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"model.head: lr must be positive and momentum in [0, 1), got {self.lr} and {self.momentum}"
            )

    def build(self, num_classes: int, dim: int, seed: int) -> Linear:
        rng = stream(seed, Purpose.HEAD)
        rows = prototypes.tammes(num_classes, dim, rng, steps=self.steps, lr=self.lr, momentum=self.momentum)
        return Linear(_rounded(rows), learned=False)


Head = Learned | FixedRandom | Orthonormal | SimplexEtf | Tammes


def _rounded(weight: Tensor) -> Tensor:
    return weight.to(torch.float32)
