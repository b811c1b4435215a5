"""The closed-form head from V and U, or from sums of them (SphereFed, Eq. 12)."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from spherefed.calibration.context import SummaryValue
from spherefed.errors import CalibrationError, ConfigError, SpherefedError

NUMBERS: tuple[type, ...] = (Real, Tensor)


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Solution:
    """A closed-form head, and how it was computed."""

    weight: Tensor
    """(C, l) float64, the layout of nn.Linear."""
    path: Literal["cholesky", "eigh"]
    rcond: float
    """Reciprocal condition number of V + λI: in the 1-norm for Cholesky, smallest over largest eigenvalue for eigh."""
    rank: int
    dropped: int
    """Number of eigenvectors for which V + λI is zero up to rounding and truncation; the minimum-norm solution excludes
    them."""
    ridge: float
    """λ of Eq. 12, exactly as given."""

    def __repr__(self) -> str:
        num_classes, dim = self.weight.shape
        return (
            f"Solution({num_classes} classes × {dim} features by {self.path}, rank {self.rank}, "
            f"rcond {self.rcond:.2g}, ridge {self.ridge:g})"
        )

    def summary(self) -> dict[str, SummaryValue]:
        """All fields except the weight, for the result of a run."""
        names = ("path", "rcond", "rank", "dropped", "ridge")
        return {name: getattr(self, name) for name in names}


def eigenvalue_cutoff(largest: float, dim: int, noise: float) -> float:
    """Eigenvalues up to this one are zeros: max(l·2⁻⁵²·λ_max, noise), the errors of rounding and of truncation."""
    return max(dim * 2.0**-52 * largest, noise)


def solve(gram_ll: Tensor, cross_lC: Tensor, ridge: float, *, noise: float = 0.0) -> Solution:
    """SphereFed, Eq. 12:  W* = (V + λI)⁻¹ U.

    Uses Cholesky if V + λI is regular in float64 and has no eigenvalue up to `noise`, the noise floor of V. Otherwise
    the eigenvectors with eigenvalues above `eigenvalue_cutoff` give the minimum-norm solution. λ itself never changes:
    λ > noise keeps every direction.
    """
    if not (isinstance(ridge, NUMBERS) and ridge >= 0 and isfinite(ridge)):
        raise _wrong_ridge(ridge)
    dim = len(gram_ll)
    system_ll = gram_ll.clone()
    system_ll.diagonal().add_(ridge)
    del gram_ll  # its memory is free from here on, unless the caller needs it
    regular, lowest = _cholesky(system_ll, cross_lC, ridge)
    if regular is not None and lowest > noise:
        return regular
    values_l, vectors_ll = eigh_in_place(system_ll)
    largest = float(values_l[-1])
    # A Gram matrix has no negative eigenvalues; the tolerance allows for the rounding of eigh.
    if not largest > 0 or float(values_l[0]) - ridge < -8 * dim * 2.0**-52 * largest:
        raise CalibrationError(
            "V is not a Gram matrix of features: it is not positive semi-definite; "
            "were statistics subtracted that were not added?"
        )
    keep = values_l > eigenvalue_cutoff(largest, dim, noise)
    rank = int(keep.sum())
    if regular is not None and rank == dim:  # the lower bound of `_cholesky` was too low
        return regular
    basis_lr = vectors_ll[:, keep]
    weight_lC = basis_lr @ ((basis_lr.T @ cross_lC) / values_l[keep, None])
    return Solution(
        weight=weight_lC.T.contiguous(),
        path="eigh",
        rcond=max(float(values_l[0]), 0.0) / largest,
        rank=rank,
        dropped=dim - rank,
        ridge=ridge,
    )


def _wrong_ridge(ridge: object) -> SpherefedError:
    if isinstance(ridge, NUMBERS):
        return CalibrationError(f"ridge must be finite and not negative, got {ridge}")
    return ConfigError(f"ridge must be a number, got {ridge!r}; write for example ridge=0.1")


def eigh_in_place(matrix_ll: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (l,), ascending, and eigenvectors (l, l) of a symmetric matrix, which they overwrite.

    The bits of `torch.linalg.eigh`, with one matrix less: LAPACK needs two more as workspace.
    """
    values_l = torch.empty(len(matrix_ll), dtype=matrix_ll.dtype, device=matrix_ll.device)
    vectors_ll = matrix_ll.mT  # in the layout of LAPACK; the matrix is symmetric
    torch.linalg.eigh(vectors_ll, out=(values_l, vectors_ll))
    return values_l, vectors_ll


def _cholesky(system_ll: Tensor, cross_lC: Tensor, ridge: float) -> tuple[Solution | None, float]:
    """The solution if the system is regular in float64, and a lower bound of its smallest eigenvalue.

    λ_min = 1 / ‖A⁻¹‖₂ ≥ 1 / ‖A⁻¹‖₁ for a symmetric A.
    """
    dim = len(system_ll)
    factor_ll, info = torch.linalg.cholesky_ex(system_ll)
    if int(info) != 0:
        return None, 0.0
    inverse_norm = torch.linalg.matrix_norm(torch.cholesky_inverse(factor_ll), 1)
    rcond = 1 / float(torch.linalg.matrix_norm(system_ll, 1) * inverse_norm)
    if not rcond >= dim * 2.0**-52:
        return None, 0.0
    weight_lC = torch.cholesky_solve(cross_lC, factor_ll)
    solution = Solution(weight=weight_lC.T.contiguous(), path="cholesky", rcond=rcond, rank=dim, dropped=0, ridge=ridge)
    return solution, 1 / float(inverse_norm)
