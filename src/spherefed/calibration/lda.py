"""Linear discriminant analysis from V, U and n_c: Gaussian classes with one covariance (Fisher 1936; Rao 1948).

    Σ = (V − Σ_c n_c μ_c μ_cᵀ) / n,   Σ̂ = (1 − s) Σ + s · tr(Σ)/l · I
    score_c(z) = μ_cᵀ Σ̂⁻¹ z − ½ μ_cᵀ Σ̂⁻¹ μ_c + ln(n_c / n)

Heads have no bias. The constant b_c becomes b_c · uᵀz with the u for which uᵀz is closest to 1 in least squares,
u = V⁺ Σz. Where features contain a constant this is exact; otherwise `intercept_rmse` says how far uᵀz is from 1.
Deviation: the textbook divides by n − C; scikit-learn and this module divide by n.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.class_statistics import measure_with_counts, merge_with_counts, split_counts
from spherefed.calibration.class_sums import ClassHead
from spherefed.calibration.context import Context
from spherefed.calibration.ffc import Ffc
from spherefed.calibration.solution import solve
from spherefed.errors import ConfigError, NothingMeasuredError
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors, one_thread


@dataclass(frozen=True, kw_only=True, slots=True)
class Lda:
    """Linear discriminant analysis with a shrunk covariance; a class that nobody has gets a row of zeros."""

    kind: ClassVar[str] = "lda"
    capacity: ClassVar[int] = Ffc.capacity
    shrinkage: float = 0.1
    """s: the weight of the spherical covariance with the same trace."""

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage <= 1:
            raise ConfigError(f"calibration.shrinkage must be in (0, 1], got {self.shrinkage}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: V, U and class counts."""
        return measure_with_counts(model, batches)

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; raises CalibrationError for an invalid part."""
        return merge_with_counts(total, part, context)

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return Ffc().num_examples(part)

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return Ffc().max_bytes(head, max_examples) + 8 * head.shape[0]

    def solve(self, total: Tensors, context: Context) -> ClassHead:
        """On the server, after all replies."""
        statistics, counts_C = split_counts(total)
        n = statistics.num_examples
        if not n:
            raise NothingMeasuredError("no example was measured, so the head cannot be computed")
        occurring = counts_C > 0
        with one_thread():
            gram_ll, sums_lc, counts_c = statistics.gram(), statistics.cross()[:, occurring], counts_C[occurring]
            means_lc = sums_lc / counts_c
            covariance_ll = shrunk((gram_ll - means_lc @ sums_lc.T) / n, self.shrinkage)
            weight_lc = torch.linalg.solve(covariance_ll, means_lc)
            bias_c = -0.5 * (weight_lc * means_lc).sum(dim=0) + (counts_c / n).log()
            total_l1 = sums_lc.sum(dim=1, keepdim=True)
            intercept_l1 = solve(gram_ll, total_l1, 0.0, noise=statistics.noise_floor).weight.T
            weight_Cl = torch.zeros(len(counts_C), len(gram_ll), dtype=torch.float64)
            weight_Cl[occurring] = (weight_lc + intercept_l1 * bias_c).T
        # Σ (1 − uᵀz)² = n − uᵀΣz for the least-squares u.
        rmse = max(1 - float(total_l1.T @ intercept_l1) / n, 0.0) ** 0.5
        details = {"shrinkage": self.shrinkage, "intercept_rmse": rmse, "classes": int(occurring.sum())}
        return ClassHead(weight_Cl, details)


def shrunk(covariance_ll: Tensor, shrinkage: float) -> Tensor:
    """(1 − s) Σ + s · tr(Σ)/l · I; raises NothingMeasuredError if Σ is zero, which no single client can cause."""
    mean_variance = float(covariance_ll.trace()) / len(covariance_ll)
    if not mean_variance > 0:
        raise NothingMeasuredError("features do not vary within any class, so their covariance cannot be inverted")
    eye_ll = torch.eye(len(covariance_ll), dtype=covariance_ll.dtype)
    return (1 - shrinkage) * covariance_ll + shrinkage * mean_variance * eye_ll
