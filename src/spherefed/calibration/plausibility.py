"""Whether moments can come from examples at all: necessary conditions that no honest client can miss by rounding.

The checks need nothing beside the moments themselves; class counts, for example, would disclose more. They bound what a
client can do, they do not prove that it tells the truth: a negated U, or very many equal examples, pass.
"""

import torch
from torch import Tensor

from spherefed.errors import CalibrationError

SMALLEST_TRACE = 1e-250
"""Below this, products of features underflow; such moments are zero for every purpose."""


def check_gram(gram_ll: Tensor, cross_lC: Tensor, num_examples: int) -> None:
    """V ⪰ 0  and  tr(Uᵀ V⁺ U) ≤ n, for V = ZᵀZ and U = ZᵀY with one-hot rows Y; raises CalibrationError.

    Changes the diagonal of `gram_ll`, because V can be large and its caller needs no copy.

    UᵀV⁺U = YᵀPY ⪯ YᵀY, where P projects on the columns of Z, and tr(YᵀY) = n. V is tested as V + τI with
    τ = l·2⁻⁵²·tr(V). Cholesky in float64 finds LLᵀ = V + τI + Δ with ‖Δ‖ ≤ (l + 1)·2⁻⁵³·tr(V), and rounding V costs
    2⁻⁵³·tr(V): together less than τ for l ≥ 2. So it succeeds for every Gram matrix, singular or not, and LLᵀ ⪰ V. The
    triangular solve has a relative error below √l·2⁻²⁶, because ‖L⁻¹‖·‖L‖ ≤ 2²⁶·⁵/√l; the tolerance l·2⁻²⁴ covers it.
    """
    dim, trace = len(gram_ll), float(gram_ll.trace())
    if num_examples == 0 or dim == 0:
        return  # V and U of no example are zero, which the bounds of their entries ensure
    gram_ll.diagonal().add_(dim * 2.0**-52 * trace)
    factor_ll, info = torch.linalg.cholesky_ex(gram_ll)
    if int(info) != 0:
        raise CalibrationError("V is not a Gram matrix of features: it is not positive semi-definite")
    explained = float(torch.linalg.solve_triangular(factor_ll, cross_lC, upper=False).square().sum())
    if not explained <= num_examples * (1 + dim * 2.0**-24):
        raise CalibrationError(
            f"U does not fit V: tr(UᵀV⁺U) = {explained:.6g}, and {num_examples} examples give at most {num_examples}"
        )


def check_second_moment(product_ll: Tensor, sum_l: Tensor, num_examples: int) -> None:
    """Σzzᵀ ⪰ (Σz)(Σz)ᵀ / n, up to the rounding of float64 sums over n examples; raises CalibrationError.

    A sum of n products has an error of at most n·2⁻⁵³·tr(Σzzᵀ) in norm, Cholesky of (l + 1)·2⁻⁵³·tr(Σzzᵀ).
    """
    trace = float(product_ll.trace())
    if trace < SMALLEST_TRACE:
        return
    tolerance = (num_examples + len(sum_l) + 8) * 2.0**-51
    scaled_ll = (product_ll - torch.outer(sum_l, sum_l / num_examples)) / trace
    scaled_ll.diagonal().add_(tolerance)
    _, info = torch.linalg.cholesky_ex(scaled_ll)
    if int(info) != 0:
        raise CalibrationError("CCVR moments are not sums over examples: Σzzᵀ is less than n times the squared mean")
