"""FedCOF (Goswami et al. 2025): the covariance of a class, estimated from the means of the clients that have it.

    Σ̂_c = Σ_k n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ / (K_c − 1),   G = Σ_c (n_c − 1) Σ̂_c,   w_c ∝ G⁻¹ n_c μ_c

Σ̂_c is unbiased if clients draw the examples of a class alike. Only the scatter within classes enters G, and rows of
the head have unit norm, as in the paper. Upload: 8·c·(l + 2) bytes for a client with c classes, as for `ncm`, instead
of FFC's l²; it discloses class counts and class means. The result depends on the partition by design.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.class_sums import ClassHead, ClassSums, check_total, class_sums, unit_rows_or_zero
from spherefed.calibration.context import Context
from spherefed.calibration.ffc import Ffc
from spherefed.calibration.lda import shrunk
from spherefed.errors import ConfigError, NothingMeasuredError
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors, one_thread


@dataclass(frozen=True, kw_only=True, slots=True)
class FedCof:
    """The head from class means only, with a shrunk estimate of the scatter within classes."""

    kind: ClassVar[str] = "fedcof"
    capacity: ClassVar[int] = Ffc.capacity
    shrinkage: float = 0.3
    """s in (1 − s) G + s · tr(G)/l · I. Deviation: the paper adds γI to each Σ̂_c, with a γ for unnormalized features;
    a multiple of the trace does not depend on the scale of features."""

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage <= 1:
            raise ConfigError(f"calibration.shrinkage must be in (0, 1], got {self.shrinkage}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: counts and sums of its classes."""
        return class_sums(model, batches).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive: the rows of all clients, one below the other."""
        checked = ClassSums.from_tensors(part, context.head).tensors()
        merged = checked if total is None else {name: torch.cat([total[name], checked[name]]) for name in total}
        check_total(int(merged["counts"].sum()))
        return merged

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return int(part["counts"].sum())

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return 8 * head.shape[0] * (2 + head.shape[1])

    def solve(self, total: Tensors, context: Context) -> ClassHead:
        """On the server, after all replies."""
        rows = ClassSums(total["classes"], total["counts"], total["sums"])
        if not len(rows.classes):
            raise NothingMeasuredError("no example was measured, so the head cannot be computed")
        num_classes, dim = context.head.shape
        with one_thread():
            counts_C = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, rows.classes, rows.counts.double())
            sums_Cl = torch.zeros(num_classes, dim, dtype=torch.float64).index_add_(0, rows.classes, rows.values())
            scatter_ll, shared = _scatter(rows, counts_C, sums_Cl)
            if not shared:
                raise NothingMeasuredError("fedcof needs a class that at least two clients have; use 'ncm'")
            weight_Cl = torch.linalg.solve(shrunk(scatter_ll, self.shrinkage), sums_Cl.T).T
        return ClassHead(unit_rows_or_zero(weight_Cl), {"shrinkage": self.shrinkage, "shared_classes": shared})


def _scatter(rows: ClassSums, counts_C: Tensor, sums_Cl: Tensor) -> tuple[Tensor, int]:
    """G, and the number of classes that at least two clients have: no other class says anything about it."""
    dim, shared = sums_Cl.shape[1], 0
    scatter_ll = torch.zeros(dim, dim, dtype=torch.float64)
    values = rows.values()
    for number in torch.unique(rows.classes).tolist():
        own = rows.classes == number
        counts_k = rows.counts[own].double()
        if len(counts_k) < 2:
            continue
        deviations_kl = values[own] / counts_k[:, None] - sums_Cl[number] / counts_C[number]
        weight_k = counts_k * ((counts_C[number] - 1) / (len(counts_k) - 1))
        scatter_ll += (deviations_kl * weight_k[:, None]).T @ deviations_kl
        shared += 1
    return scatter_ll, shared
