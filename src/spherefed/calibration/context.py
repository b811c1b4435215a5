"""Input and output of the server side of every calibration, apart from the moments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors

SummaryValue = float | int | str | list[float]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Context:
    """Inputs of `merge` and `solve` other than the moments."""

    head: Tensor
    """(C, l): the head of the measured model; calibration replaces it."""
    seed: int
    round: int
    """Part of the names of random streams, so that calibrations in different rounds draw different numbers."""


class Solved(Protocol):
    """A new head, and how it was computed."""

    @property
    def weight(self) -> Tensor:
        """(C, l), the layout of nn.Linear."""
        ...

    def summary(self) -> Mapping[str, SummaryValue]:
        """How the head was computed, without its weight, for the result of a run."""
        ...


class OwnCalibration(Protocol):
    """A user's calibration: a frozen dataclass."""

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: its moments."""
        ...

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, in ascending client id; raises CalibrationError for an invalid part."""
        ...

    def solve(self, total: Tensors, context: Context) -> Solved:
        """On the server, after all replies."""
        ...
