"""FFC with λ chosen by generalized cross-validation (Golub, Heath & Wahba 1979), from the summed statistics only.

    GCV(λ) = n · RSS(λ) / (n − df(λ))²,   RSS = n − 2 tr(WᵀU) + tr(WᵀVW),   df = tr(V (V + λI)⁻¹)

n = Σ‖one_hot(y)‖², so n, V and U are sufficient: the choice of λ costs the server one eigendecomposition and the
clients nothing.

GCV is leave-one-out cross-validation with the leverage of every example replaced by the mean leverage, so it is close
to exact leave-one-out if no class is rare. In 200 random problems with n ≥ 20 l each, λ differed by more than half a
decade in 2 problems with balanced classes, in 4 at 3 : 1 and in 12 at 10 : 1; the leave-one-out error was more than 2 %
above its minimum in 0, 0 and 5 of them. If a class has only a few examples, or n is close to l, λ can be far too small.
Only the pooled data of all clients matter, not the label skew between clients.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spherefed.calibration.context import Context, SummaryValue
from spherefed.calibration.ffc import Ffc, Statistics
from spherefed.calibration.solution import Solution, eigenvalue_cutoff, eigh_in_place
from spherefed.errors import NothingMeasuredError
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors, one_thread

FIRST_EXPONENTS = range(-12, 5)
"""The initial grid: λ = n/l · 10^(k/2), that is 10⁻⁶ to 10² times the mean eigenvalue of V, in half-decades."""
LAST_EXPONENTS = range(-26, 13)
"""Limits of the extended grid: below 10⁻¹³ λ is smaller than rounding errors; above 10⁶ the head only shrinks."""


@dataclass(frozen=True, slots=True)
class RidgeChoice:
    """The λ with the smallest GCV, and the grid."""

    ridge: float
    grid: tuple[float, ...]
    """Every λ that was evaluated, ascending."""
    scores: tuple[float, ...]
    """GCV of each λ, per example."""

    @property
    def on_edge(self) -> bool:
        """Whether the chosen λ is an end of the extended grid."""
        return self.ridge in (self.grid[0], self.grid[-1])


def choose_ridge(statistics: Statistics) -> RidgeChoice:
    """The λ of Eq. 12 that minimizes GCV on a half-decade grid, which is extended while the best λ is at an end."""
    n = statistics.num_examples
    if n == 0:
        raise NothingMeasuredError("no example was measured, so the ridge cannot be chosen")
    with one_thread():
        spectrum = _Spectrum.of(statistics)
    unit = n / statistics.dim
    scores = {k: spectrum.gcv(unit * 10 ** (k / 2)) for k in FIRST_EXPONENTS}
    while True:
        best = min(scores, key=lambda k: scores[k])
        step = {min(scores): -1, max(scores): 1}.get(best, 0)
        candidate = best + step
        if not step or candidate not in LAST_EXPONENTS or unit * 10 ** (candidate / 2) < spectrum.floor:
            break
        scores[candidate] = spectrum.gcv(unit * 10 ** (candidate / 2))
    ascending = sorted(scores)
    grid = tuple(unit * 10 ** (k / 2) for k in ascending)
    return RidgeChoice(grid[ascending.index(best)], grid, tuple(scores[k] for k in ascending))


@dataclass(frozen=True, eq=False, slots=True)
class _Spectrum:
    """The eigenvalues d of V above `eigenvalue_cutoff` and, for each eigenvector q, b = ‖qᵀU‖²."""

    num_examples: int
    values_r: Tensor
    weights_r: Tensor
    floor: float
    """Errors of eigenvalues by rounding and truncation: the grid is not extended below."""

    @staticmethod
    def of(statistics: Statistics) -> "_Spectrum":
        values_l, vectors_ll = eigh_in_place(statistics.gram())
        floor = eigenvalue_cutoff(float(values_l[-1]), statistics.dim, statistics.noise_floor)
        keep = values_l > floor
        weights_r = (vectors_ll[:, keep].T @ statistics.cross()).square().sum(dim=1)
        return _Spectrum(statistics.num_examples, values_l[keep], weights_r, floor)

    def gcv(self, ridge: float) -> float:
        """n · RSS / (n − df)², with sums of non-negative terms, because RSS and n − df both → 0 as λ → 0 if l ≥ n.

        RSS = (n − Σ b/d) + Σ λ² b / (d (d + λ)²)  and  n − df = (n − r) + Σ λ / (d + λ)  over the r eigenvalues d, with
        b = ‖qᵀU‖². n − Σ b/d is the residual of the unregularized fit, which is zero if r = n.
        """
        n, d, b = self.num_examples, self.values_r, self.weights_r
        least_rss = max(n - float((b / d).sum()), 0.0) if len(d) < n else 0.0
        rss = least_rss + float((ridge**2 * b / (d * (d + ridge) ** 2)).sum())
        residual_df = max(n - len(d), 0) + float((ridge / (d + ridge)).sum())
        return n * rss / residual_df**2


@dataclass(frozen=True, slots=True)
class FfcGcv:
    """FFC with λ chosen by generalized cross-validation; clients measure the same statistics as for `Ffc`."""

    kind: ClassVar[str] = "ffc-gcv"
    capacity: ClassVar[int] = Ffc.capacity

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: V and U of its examples."""
        return Ffc().measure(model, batches)

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; raises CalibrationError for an invalid part."""
        return Ffc().merge(total, part, context)

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return Ffc().num_examples(part)

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return Ffc().max_bytes(head, max_examples)

    def solve(self, total: Tensors, context: Context) -> "GcvSolution":
        """On the server, after all replies."""
        statistics = Statistics.from_tensors(total)
        choice = choose_ridge(statistics)
        return GcvSolution(statistics.solve(choice.ridge), choice)


@dataclass(frozen=True, eq=False, slots=True)
class GcvSolution:
    """A closed-form head, and how λ was chosen."""

    solution: Solution
    choice: RidgeChoice

    @property
    def weight(self) -> Tensor:
        return self.solution.weight

    def summary(self) -> dict[str, SummaryValue]:
        """How the head and λ were computed, without the weight."""
        grid: dict[str, SummaryValue] = {"grid": list(self.choice.grid), "gcv": list(self.choice.scores)}
        return self.solution.summary() | grid
