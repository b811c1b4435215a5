"""The parts of a page as values: sections made of figures, tables, lists and texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spherefed.report.drawing import Drawing
from spherefed.report.tables import Cells


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption."""

    drawing: Drawing
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `best` is the line to mark."""

    cells: Cells
    caption: str = ""
    best: int | None = None
    title: str = ""
    text_columns: tuple[int, ...] = ()
    """Columns of text, which are aligned to the left and may wrap."""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names with values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence["Block"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Blocks beside each other if the page is wide."""

    blocks: Sequence["Block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """How far one run is."""

    label: str
    state: str
    """A CSS class."""
    state_text: str
    fraction: float
    """From 0 to 1."""
    text: str


@dataclass(frozen=True, slots=True)
class Bars:
    """The progress of several runs."""

    bars: Sequence[Bar]


Block = Figure | Table | Text | Pairs | Details | Columns | Bars


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading; `id` is the target of links."""

    id: str
    title: str
    blocks: Sequence[Block]


def drawings(blocks: Sequence[Block]) -> Iterator[Drawing]:
    """Every drawing in these blocks, in their order."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block.drawing
        elif isinstance(block, Details | Columns):
            yield from drawings(block.blocks)
