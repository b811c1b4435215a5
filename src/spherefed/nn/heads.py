"""The classifier's last layer, chosen by value: learned, or fixed to rows that everybody derives from the seed.

No head has a bias. A fixed head is a buffer, not a parameter: it takes no gradient and is never sent in a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

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


Head = Learned | FixedRandom | Orthonormal


def _rounded(weight: Tensor) -> Tensor:
    return weight.to(torch.float32)
