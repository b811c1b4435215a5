"""The closed form itself: from V and U, or any sum of them, to a head (SphereFed, Eq. 12), and how it was had."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from spherefed.calibration.context import Fact
from spherefed.errors import CalibrationError


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Solution:
    """A solved head, and how it was had."""

    weight: Tensor
    """(C, l) float64, as nn.Linear wants it."""
    path: Literal["cholesky", "eigh"]
    rcond: float
    """Reciprocal condition number of V + λI: in the 1-norm by Cholesky, smallest over largest eigenvalue by eigh."""
    rank: int
    dropped: int
    """Directions in which V + λI is numerically zero; the minimum-norm solution leaves them out."""
    ridge: float
    """λ of Eq. 12; never changed silently."""

    def facts(self) -> dict[str, Fact]:
        """Everything but the weight, for the run's result."""
        names = ("path", "rcond", "rank", "dropped", "ridge")
        return {name: getattr(self, name) for name in names}


def solve(gram_ll: Tensor, cross_lC: Tensor, ridge: float) -> Solution:
    """SphereFed, Eq. 12:  W* = (V + λI)⁻¹ U.

    Cholesky while it is safe; where V + λI is singular to working precision, the eigenvectors above l·2⁻⁵²·λ_max
    give the minimum-norm solution.
    """
    if not (ridge >= 0 and isfinite(ridge)):
        raise CalibrationError(f"ridge must be a number and not negative, got {ridge}")
    dim = len(gram_ll)
    cutoff = dim * 2.0**-52
    system_ll = gram_ll + ridge * torch.eye(dim, dtype=torch.float64, device=gram_ll.device)
    factor_ll, info = torch.linalg.cholesky_ex(system_ll)
    if int(info) == 0:
        inverse_ll = torch.cholesky_inverse(factor_ll)
        rcond = 1 / float(torch.linalg.matrix_norm(system_ll, 1) * torch.linalg.matrix_norm(inverse_ll, 1))
        if rcond >= cutoff:
            weight_lC = torch.cholesky_solve(cross_lC, factor_ll)
            return Solution(
                weight=weight_lC.T.contiguous(), path="cholesky", rcond=rcond, rank=dim, dropped=0, ridge=ridge
            )
    values_l, vectors_ll = torch.linalg.eigh(system_ll)
    largest = float(values_l[-1])
    # A Gram matrix has no negative eigenvalue but for the rounding of eigh, which a few times the cut-off covers.
    if not largest > 0 or float(values_l[0]) - ridge < -8 * cutoff * largest:
        raise CalibrationError("V is not the Gram matrix of any features; was something subtracted that was not added?")
    keep = values_l > cutoff * largest
    basis_lr = vectors_ll[:, keep]
    weight_lC = basis_lr @ ((basis_lr.T @ cross_lC) / values_l[keep, None])
    rank = int(keep.sum())
    return Solution(
        weight=weight_lC.T.contiguous(),
        path="eigh",
        rcond=max(float(values_l[0]), 0.0) / largest,
        rank=rank,
        dropped=dim - rank,
        ridge=ridge,
    )
