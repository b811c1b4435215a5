"""Cycles and memory traffic of a matrix product on a systolic array (Samajdar et al. 2020, SCALE-Sim).

A product is cut into folds of at most R×C cells. Operands stream through the array; filling and draining it takes the
rows and columns on top of the length T of the stream.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

from spherefed.costs.gemms import Gemm
from spherefed.errors import ConfigError

Dataflow = Literal["os", "ws", "is"]
"""Which matrix stays in the cells: the output, the weight or the input."""
DATAFLOWS: tuple[Dataflow, ...] = ("os", "ws", "is")

BYTES_PER_NUMBER = 4
"""SphereFed, App. E: floating-point cells; 32 bits as in Table 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """R×C cells, each with one multiplication and addition per cycle (SphereFed, App. E)."""

    rows: int = 32
    columns: int = 64
    clock_hz: float = 100e6
    special_lanes: int = 64
    """Elements per cycle of the special unit. Unstated in the paper: one per column."""

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.special_lanes) < 1 or not self.clock_hz > 0:
            raise ConfigError(f"an array needs rows, columns, lanes and a clock above 0, got {self}")

    @property
    def num_cells(self) -> int:
        return self.rows * self.columns


def mapping(gemm: Gemm, dataflow: Dataflow) -> tuple[int, int, int]:
    """(S_r, S_c, T): what is spread over rows and columns, and the length of the stream.

    >>> mapping(Gemm(m=2, n=3, k=5), "ws")
    (5, 3, 2)
    """
    match dataflow:
        case "os":
            return gemm.m, gemm.n, gemm.k
        case "ws":
            return gemm.k, gemm.n, gemm.m
        case "is":
            return gemm.k, gemm.m, gemm.n
        case _:
            assert_never(dataflow)


def folds(gemm: Gemm, array: Array, dataflow: Dataflow) -> tuple[int, int]:
    """⌈S_r / R⌉ and ⌈S_c / C⌉ of one of the products."""
    rows, columns, _ = mapping(gemm, dataflow)
    return -(-rows // array.rows), -(-columns // array.columns)


def gemm_cycles(gemm: Gemm, array: Array, dataflow: Dataflow) -> int:
    """folds · (T + R + C − 2), and another R to load what is stationary for "ws" and "is".

    >>> gemm_cycles(Gemm(m=32, n=64, k=100), Array(), "os")
    194
    """
    row_folds, column_folds = folds(gemm, array, dataflow)
    _, _, stream = mapping(gemm, dataflow)
    load = 0 if dataflow == "os" else array.rows
    return gemm.count * row_folds * column_folds * (stream + load + array.rows + array.columns - 2)


def streamed_elements(gemm: Gemm, array: Array, dataflow: Dataflow) -> int:
    """Elements to and from memory if nothing is kept on the chip between folds.

    Operands are read again in every fold that needs them. Where K is spread over the rows ("ws", "is"), partial sums
    are written by every fold and read by every fold but the first.
    """
    row_folds, column_folds = folds(gemm, array, dataflow)
    left, right, output = gemm.m * gemm.k, gemm.k * gemm.n, gemm.m * gemm.n
    match dataflow:
        case "os":
            once = column_folds * left + row_folds * right + output
        case "ws":
            once = right + column_folds * left + (2 * row_folds - 1) * output
        case "is":
            once = left + column_folds * right + (2 * row_folds - 1) * output
        case _:
            assert_never(dataflow)
    return gemm.count * once
