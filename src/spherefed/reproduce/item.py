"""An item of the paper as a value: its cells, each an experiment and the paper's number, and the claims to judge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from spherefed.experiment import Experiment

Key = tuple[str, str]
"""Row and column of a cell."""
Metric = Literal[
    "trained", "calibrated", "personal", "personal_std", "local_only",
    "cosine", "norm_difference", "alignment", "mixing", "head_seconds",
]  # fmt: skip
"""Accuracy of the model as trained or calibrated; mean and standard deviation over clients of the accuracy of their
own models; mean accuracy of models that clients train alone (`runs/local_only.py`); Eq. 2 and 3 after the last round;
the agreement of local models' features (`alignment.py`); or the time to make the fixed head (`head_time.py`)."""
BEYOND = "beyond the paper"
"""Begins the text of claims that are ours."""
ACCURACIES = ("trained", "calibrated", "personal", "local_only")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One number of an item."""

    row: str
    column: str
    experiment: Experiment | None
    """With seed 0; None: this scale does not run the cell."""
    metric: Metric = "trained"
    paper: float | None = None
    """The paper's number; None: the paper has no such cell."""
    base: Key | None = None
    """The cell that the difference is taken to."""

    @property
    def key(self) -> Key:
        return self.row, self.column


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement of the paper about cells: f(plus) − f(minus) is above `least`, or at most `margin` from zero."""

    text: str
    plus: tuple[Key, ...]
    minus: tuple[Key, ...] = ()
    measure: Literal["sum", "spread", "diverged"] = "sum"
    """f: the sum of the cells; the difference between the largest and the smallest of them; or 1 if all of them
    diverged and 0 if not."""
    paper: float | None = None
    """The size that the paper's numbers give."""
    margin: float | None = None
    """None: the claim is that the quantity is above `least`."""
    least: float = 0.0
    """Zero: the claim is that the quantity is positive. Without meaning for a claim with a margin."""


def better(text: str, more: Key, less: Key, size: float | None = None, *, least: float = 0.0) -> Claim:
    """The claim that a cell is larger than another, by at least `least`; if the paper's numbers say so, by how much."""
    return Claim(text=text, plus=(more,), minus=(less,), paper=size, least=least)


def close(text: str, one: Key, other: Key, margin: float, size: float | None = None) -> Claim:
    """The claim that two cells differ by at most a margin."""
    return Claim(text=text, plus=(one,), minus=(other,), paper=size, margin=margin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A table, a figure or a section of the paper."""

    name: str
    """As on the command line, such as `table2`."""
    title: str
    claim: str
    """What the paper says it shows, in one sentence."""
    cells: tuple[Cell, ...] = ()
    claims: tuple[Claim, ...] = ()
    deviations: tuple[str, ...] = ()
    """Differences to the paper beside those of the scale."""
    computed: Callable[[], dict[str, Any]] | None = None
    """For items without training: tables and verdicts by formula."""
    unit: str = "%"

    def experiments(self) -> list[Experiment]:
        """The experiments of all cells, each once, in order."""
        found = {cell.experiment.digest(): cell.experiment for cell in self.cells if cell.experiment is not None}
        return list(found.values())

    def trainings(self) -> list[Experiment]:
        """The trainings behind them, each once."""
        found = {e.training_part().digest(): e.training_part() for e in self.experiments()}
        return list(found.values())
