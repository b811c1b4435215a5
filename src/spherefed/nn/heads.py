"""The last layer of the classifier: learned, or fixed to rows that every client derives from the seed.

Heads have no bias. A fixed head is a buffer, not a parameter: it has no gradient and is not sent in a round.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from spherefed.errors import ConfigError
from spherefed.nn import prototypes
from spherefed.rng import Purpose, stream


class ClassifierHead(nn.Module):
    """Scores = W z. W, of shape C×l, is a parameter (learned) or a buffer (fixed).

    A fixed W may be None until the feature dimension is known.
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
    def is_uninitialized(self) -> bool:
        """Whether W is None, because the feature dimension is not known yet."""
        return self._buffers.get("weight", self) is None

    def coherence(self) -> float:
        """The largest cosine between two different rows; smaller values mean better separated classes."""
        return prototypes.coherence(self.weight.detach())

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight)

    def extra_repr(self) -> str:
        shape = "uninitialized" if self.is_uninitialized else tuple(self.weight.shape)
        return f"{shape}, {'learned' if self.learned else 'fixed'}"

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if self.is_uninitialized and f"{prefix}weight" in state_dict:
            self.weight = torch.empty_like(state_dict[f"{prefix}weight"])
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True, slots=True)
class Learned:
    """Trained and averaged like the other parameters; initialized like the weight of torch.nn.Linear."""

    kind: ClassVar[str] = "learned"

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        return ClassifierHead(_float32(prototypes.uniform(num_classes, dim, stream(seed, Purpose.HEAD))), learned=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RidgeStart:
    """Trained and averaged like `learned`, from the ridge head of all clients' features (Fed3R, Fanì et al. 2024).

    Before round 0 every client sends V and U once, and the server solves for the head (`calibration/ffc.py`).
    """

    kind: ClassVar[str] = "ridge-start"
    scale: float | None = None
    """Factor of the ridge head, whose scores lie near 0 and 1; none: 10 for cross-entropy (Fed3R's softmax temperature
    of 0.1), 1 for any other loss."""

    def __post_init__(self) -> None:
        if self.scale is not None and not (self.scale > 0 and isfinite(self.scale)):
            raise ConfigError(f"model.head.scale must be a positive number, got {self.scale}")

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        return Learned().build(num_classes, dim, seed)


@dataclass(frozen=True, slots=True)
class FixedRandom:
    """Fixed random rows: Fix(R) of Table 3, the head of BABU."""

    kind: ClassVar[str] = "random"

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        return ClassifierHead(_float32(prototypes.uniform(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False)


@dataclass(frozen=True, slots=True)
class Orthonormal:
    """Fixed orthonormal rows: Fix(OU), the head of SphereFed (Eq. 4)."""

    kind: ClassVar[str] = "orthonormal"

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        return ClassifierHead(
            _float32(prototypes.orthonormal(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False
        )


@dataclass(frozen=True, slots=True)
class SimplexEtf:
    """Fixed rows of a simplex equiangular tight frame: every cosine is −1/(C−1); needs C ≤ l + 1."""

    kind: ClassVar[str] = "etf"

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        return ClassifierHead(_float32(prototypes.simplex(num_classes, dim, stream(seed, Purpose.HEAD))), learned=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tammes:
    """Fixed unit rows whose largest cosines are minimized by a search (Table 10; Mettes et al. 2019); allows C > l."""

    kind: ClassVar[str] = "tammes"
    steps: int = 10_000
    """Steps of the search."""
    lr: float = 0.1
    """Learning rate of the search."""
    momentum: float = 0.9
    """Momentum of the search."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"model.head.steps must not be negative, got {self.steps}")
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                f"model.head: lr must be positive and momentum in [0, 1), got {self.lr} and {self.momentum}"
            )

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        rng = stream(seed, Purpose.HEAD)
        rows = prototypes.tammes(num_classes, dim, rng, steps=self.steps, lr=self.lr, momentum=self.momentum)
        return ClassifierHead(_float32(rows), learned=False)


class OwnHead(Protocol):
    """A user's head: a frozen dataclass."""

    def build(self, num_classes: int, dim: int, seed: int) -> ClassifierHead:
        """The head for features of this dimension; the same for the same seed."""
        ...


Head = Learned | RidgeStart | FixedRandom | Orthonormal | SimplexEtf | Tammes | OwnHead


def _float32(weight: Tensor) -> Tensor:
    return weight.to(torch.float32)
