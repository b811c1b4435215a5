"""What every calibration's server side is given beside the moments, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Fact = float | int | str | list[float]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Context:
    """What the server knows beside the moments."""

    head: Tensor
    """(C, l): the head of the model that is measured, which the solved one replaces."""
    seed: int
    round: int
    """Names the random streams of this calibration: one in another round draws other numbers."""


class Solved(Protocol):
    """A new head, and how it was had."""

    @property
    def weight(self) -> Tensor:
        """(C, l), as nn.Linear wants it."""
        ...

    def facts(self) -> Mapping[str, Fact]:
        """Everything worth knowing but the weight, for the run's result."""
        ...
