"""V and U of FFC as exact integers, which add and subtract; symmetric matrices are packed as their upper triangle.

Statistics of a client are checked for necessary conditions that no honest client can miss by rounding. The checks need
nothing beside the statistics themselves; class counts, for example, would disclose more. They bound what a client can
do, they do not prove that it tells the truth: a negated U, or very many equal examples, pass.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spherefed.calibration.solution import Solution, solve
from spherefed.errors import CalibrationError, NothingMeasuredError
from spherefed.tensors import Tensors, one_thread

FEATURE_BITS = 20
"""Features are multiples of 2⁻²⁰."""
MAX_EXAMPLES = 2**23
"""The sum of n products of at most 2⁴⁰ must be below 2⁶³, where int64 overflows silently."""
MIRRORED_ROWS = 256
"""Rows of a symmetric matrix that are mirrored at a time."""


@dataclass(frozen=True, eq=False, slots=True)
class Statistics:
    """V = Σ z zᵀ and U = Σ z one_hot(y)ᵀ over unit features z (SphereFed, Eq. 9), as exact integers.

    `a + b` merges two clients, `a - b` removes a client; both are exact.
    """

    num_examples: int
    """Examples counted in V and U."""
    num_zero: int
    """Examples that are not counted, because a zero feature vector has no direction."""
    packed_gram: Tensor
    """(l(l+1)/2,) int64: the upper triangle of V, row by row, in units of 2⁻⁴⁰."""
    packed_cross: Tensor
    """(l, C) int64: U, in units of 2⁻²⁰."""

    @property
    def dim(self) -> int:
        return self.packed_cross.shape[0]

    @property
    def num_classes(self) -> int:
        return self.packed_cross.shape[1]

    @property
    def noise_floor(self) -> float:
        """The largest eigenvalue that truncation to 2⁻²⁰ can give V in a direction in which all features are zero.

        Truncated rows are Z − E with ‖e‖² ≤ l·2⁻⁴⁰ per row. If Zu = 0 for a unit vector u, uᵀVu = ‖Eu‖² ≤ n·l·2⁻⁴⁰. By
        Courant and Fischer, V has no more eigenvalues above this bound than Z has rank.
        """
        return self.num_examples * self.dim * 2.0**-40

    def gram(self) -> Tensor:
        """V as float64, (l, l)."""
        return unpack_triangle(self.packed_gram.double().mul_(2.0 ** (-2 * FEATURE_BITS)), self.dim)

    def cross(self) -> Tensor:
        """U as float64, (l, C)."""
        return self.packed_cross.double() * 2.0**-FEATURE_BITS

    def solve(self, ridge: float = 0.0) -> Solution:
        """The globally optimal head (SphereFed, Eq. 10; Eq. 12 with ridge λ)."""
        if self.num_examples == 0:
            zero = f"; all {self.num_zero} feature vectors of the encoder are zero" if self.num_zero else ""
            raise NothingMeasuredError(f"no example was measured, so the head cannot be computed{zero}")
        with one_thread():
            return solve(self.gram(), self.cross(), ridge, noise=self.noise_floor)

    def __add__(self, other: "Statistics | Literal[0]") -> "Statistics":
        """0 is the empty sum, so that `sum` works and a running total may start with it."""
        if isinstance(other, Statistics):
            return self._add_multiple(other, 1)
        return self if type(other) is int and other == 0 else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: "Statistics | Literal[0]") -> "Statistics":
        if isinstance(other, Statistics):
            return self._add_multiple(other, -1)
        return self if type(other) is int and other == 0 else NotImplemented

    def __repr__(self) -> str:
        return (
            f"Statistics({self.num_examples} examples, {self.num_zero} zero vectors, "
            f"{self.dim} features, {self.num_classes} classes)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and (
            (self.num_examples, self.num_zero) == (other.num_examples, other.num_zero)
            and torch.equal(self.packed_gram, other.packed_gram)
            and torch.equal(self.packed_cross, other.packed_cross)
        )

    __hash__ = None  # type: ignore[assignment]

    def _add_multiple(self, other: "Statistics", sign: int) -> "Statistics":
        if (self.dim, self.num_classes) != (other.dim, other.num_classes):
            raise CalibrationError(
                f"statistics of {self.dim} features and {self.num_classes} classes do not fit those of "
                f"{other.dim} and {other.num_classes}; measure both with the same encoder and the same classes"
            )
        num_examples = self.num_examples + sign * other.num_examples
        num_zero = self.num_zero + sign * other.num_zero
        if num_examples < 0 or num_zero < 0:
            raise CalibrationError(
                f"cannot subtract {other.num_examples} examples from {self.num_examples}: they were never added"
            )
        if num_examples >= MAX_EXAMPLES:
            raise too_many(num_examples)
        return Statistics(
            num_examples,
            num_zero,
            self.packed_gram + sign * other.packed_gram,
            self.packed_cross + sign * other.packed_cross,
        )

    def tensors(self) -> Tensors:
        """As tensors, for a message."""
        counts = torch.tensor([self.num_examples, self.num_zero])
        return {"counts": counts, "gram": self.packed_gram, "cross": self.packed_cross}

    @staticmethod
    def from_tensors(tensors: Tensors) -> "Statistics":
        """From a message. Checks names, shapes, dtypes, and that the trace is possible for n unit vectors."""
        if tensors.keys() != {"counts", "gram", "cross"} or any(t.dtype != torch.int64 for t in tensors.values()):
            given = {name: str(t.dtype) for name, t in tensors.items()}
            raise CalibrationError(f"FFC statistics must be counts, gram and cross in int64, got {given}")
        counts, gram, cross = tensors["counts"], tensors["gram"], tensors["cross"]
        dim = cross.shape[0] if cross.ndim == 2 else 0
        if counts.shape != (2,) or cross.ndim != 2 or gram.shape != (packed_size(dim),):
            raise CalibrationError(
                f"FFC statistics do not fit together: counts {tuple(counts.shape)}, gram {tuple(gram.shape)}, "
                f"cross {tuple(cross.shape)}"
            )
        total = Statistics(int(counts[0]), int(counts[1]), gram, cross)
        if total.num_examples < 0 or total.num_zero < 0:
            raise CalibrationError(
                f"counts of FFC statistics must not be negative, got {total.num_examples} and {total.num_zero}"
            )
        if total.num_examples >= MAX_EXAMPLES:
            raise too_many(total.num_examples)
        total._check_sizes()
        total._check_trace()
        return total

    @staticmethod
    def from_checked_tensors(tensors: Tensors) -> "Statistics":
        """From tensors that `from_tensors` has accepted before."""
        counts = tensors["counts"]
        return Statistics(int(counts[0]), int(counts[1]), tensors["gram"], tensors["cross"])

    def check_gram(self) -> None:
        """V ⪰ 0  and  tr(Uᵀ V⁺ U) ≤ n, for V = ZᵀZ and U = ZᵀY with one-hot rows Y; raises CalibrationError.

        UᵀV⁺U = YᵀPY ⪯ YᵀY, where P projects on the columns of Z, and tr(YᵀY) = n. V is tested as V + τI with
        τ = l·2⁻⁵²·tr(V). Cholesky in float64 finds LLᵀ = V + τI + Δ with ‖Δ‖ ≤ (l + 1)·2⁻⁵³·tr(V), and rounding V
        costs 2⁻⁵³·tr(V): together less than τ for l ≥ 2. So it succeeds for every Gram matrix, singular or not, and
        LLᵀ ⪰ V. The triangular solve has a relative error below √l·2⁻²⁶, because ‖L⁻¹‖·‖L‖ ≤ 2²⁶·⁵/√l; the tolerance
        l·2⁻²⁴ covers it.
        """
        n, dim = self.num_examples, self.dim
        if n == 0 or dim == 0:
            return  # V and U of no example are zero, which the bounds of their entries ensure
        with one_thread():
            gram_ll = self.gram()
            gram_ll.diagonal().add_(dim * 2.0**-52 * float(gram_ll.trace()))
            factor_ll, info = torch.linalg.cholesky_ex(gram_ll)
            if int(info) != 0:
                raise CalibrationError("V is not a Gram matrix of features: it is not positive semi-definite")
            explained = float(torch.linalg.solve_triangular(factor_ll, self.cross(), upper=False).square().sum())
        if not explained <= n * (1 + dim * 2.0**-24):
            raise CalibrationError(f"U does not fit V: tr(UᵀV⁺U) = {explained:.6g}, and {n} examples give at most {n}")

    def _check_sizes(self) -> None:
        """No entry of V or U exceeds n, so the sum over clients cannot overflow."""
        for name, tensor, bits in (("V", self.packed_gram, 2 * FEATURE_BITS), ("U", self.packed_cross, FEATURE_BITS)):
            bound = self.num_examples << bits
            if tensor.numel() and not -bound <= int(tensor.min()) <= int(tensor.max()) <= bound:
                raise CalibrationError(
                    f"an entry of {name} is too large for a sum over {self.num_examples} unit vectors"
                )

    def _check_trace(self) -> None:
        """Unit norm gives trace(V) = n, minus the loss by truncation: at most 2√l · 2⁻²⁰ per example."""
        diagonal = self.packed_gram[diagonal_positions(self.dim, self.packed_gram.device)].double()
        trace = float(diagonal.sum()) * 2.0 ** (-2 * FEATURE_BITS)
        tolerance = 2 * self.dim**0.5 * 2.0**-FEATURE_BITS + 1e-12
        if not self.num_examples * (1 - tolerance) <= trace <= self.num_examples * (1 + 1e-12) or (diagonal < 0).any():
            raise CalibrationError(f"trace(V) = {trace:.6g} cannot come from {self.num_examples} unit vectors")


def too_many(num_examples: int) -> CalibrationError:
    """The error for sums over more examples than int64 can hold."""
    return CalibrationError(
        f"{num_examples} examples would overflow the exact statistics; fewer than {MAX_EXAMPLES} are allowed"
    )


def packed_size(dim: int) -> int:
    """Number of elements in the upper triangle of an l×l matrix, including the diagonal.

    >>> packed_size(1280)
    819840
    """
    return dim * (dim + 1) // 2


def diagonal_positions(dim: int, device: torch.device) -> Tensor:
    """Indices of the diagonal elements in a packed triangle."""
    rows = torch.arange(dim, device=device)
    return rows * dim - rows * (rows - 1) // 2


def pack_triangle(full: Tensor) -> Tensor:
    """The upper triangle of a matrix.

    >>> pack_triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    return torch.cat([full.new_empty(0), *(row[number:] for number, row in enumerate(full))])


def unpack_triangle(triangle: Tensor, dim: int) -> Tensor:
    """The full symmetric matrix.

    >>> unpack_triangle(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    full = torch.empty(dim, dim, dtype=triangle.dtype, device=triangle.device)
    for number, row in enumerate(torch.split(triangle, [*range(dim, 0, -1)])):
        full[number, number:] = row
    for top in range(0, dim, MIRRORED_ROWS):
        rows = slice(top, top + MIRRORED_ROWS)
        full[rows, :top] = full[:top, rows].T
        full[rows, rows] = full[rows, rows].triu() + full[rows, rows].triu(1).T
    return full
