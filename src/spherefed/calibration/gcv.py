"""FFC with λ chosen by generalised cross-validation (Golub, Heath & Wahba 1979), from the summed statistics alone.

    GCV(λ) = n · RSS(λ) / (n − df(λ))²,   RSS = n − 2 tr(WᵀU) + tr(WᵀVW),   df = tr(V (V + λI)⁻¹)

n is Σ‖one_hot(y)‖², so n, V and U suffice: choosing λ costs the clients nothing and one eigendecomposition the server.

GCV is leave-one-out with every example's leverage replaced by the mean, so it follows exact leave-one-out where no
class is rare. Of 200 random problems with n ≥ 20 l each, λ was more than a half-decade away in 2 with balanced classes,
4 at 3 : 1 and 12 at 10 : 1; the leave-one-out error was more than 2 % above its least in 0, 0 and 5 of them. Where a
class has only a handful of examples, or n is near l, λ may come out far too small. It is all clients together that
count: their skew does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.context import Context, Fact
from spherefed.calibration.ffc import Ffc, Statistics
from spherefed.calibration.solution import Solution
from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors, one_thread

FIRST_EXPONENTS = range(-12, 5)
"""The grid to begin with: λ = n/l · 10^(k/2), so 10⁻⁶ to 10² times the mean eigenvalue of V, in half-decades."""
LAST_EXPONENTS = range(-26, 13)
"""How far it is extended: below 10⁻¹³ λ drowns in rounding, above 10⁶ the head only shrinks further."""


@dataclass(frozen=True, slots=True)
class RidgeChoice:
    """The λ with the smallest GCV, and the grid it was chosen from."""

    ridge: float
    grid: tuple[float, ...]
    """Every λ that was looked at, ascending."""
    scores: tuple[float, ...]
    """GCV of each, per example."""

    @property
    def on_edge(self) -> bool:
        """Whether even the extended grid ends at the chosen λ."""
        return self.ridge in (self.grid[0], self.grid[-1])


def choose_ridge(statistics: Statistics) -> RidgeChoice:
    """The λ of Eq. 12 that minimises GCV on a half-decade grid, extended where the best lies on an edge."""
    n = statistics.num_examples
    if n == 0:
        raise CalibrationError("no example was measured, so there is no ridge to choose")
    with one_thread():
        spectrum = _Spectrum.of(statistics)
    unit = n / statistics.dim
    scores = {k: spectrum.gcv(unit * 10 ** (k / 2)) for k in FIRST_EXPONENTS}
    while True:
        best = min(scores, key=lambda k: scores[k])
        step = {min(scores): -1, max(scores): 1}.get(best, 0)
        further = best + step
        if not step or further not in LAST_EXPONENTS or unit * 10 ** (further / 2) < spectrum.floor:
            break
        scores[further] = spectrum.gcv(unit * 10 ** (further / 2))
    ascending = sorted(scores)
    grid = tuple(unit * 10 ** (k / 2) for k in ascending)
    return RidgeChoice(grid[ascending.index(best)], grid, tuple(scores[k] for k in ascending))


@dataclass(frozen=True, eq=False, slots=True)
class _Spectrum:
    """V's eigenvalues above rounding and, for each, the squared length of U along its eigenvector."""

    num_examples: int
    values_r: Tensor
    weights_r: Tensor
    floor: float
    """Eigenvalues below it are rounding, and so would be a λ."""

    @staticmethod
    def of(statistics: Statistics) -> "_Spectrum":
        values_l, vectors_ll = torch.linalg.eigh(statistics.gram())
        floor = statistics.dim * 2.0**-52 * float(values_l[-1])
        keep = values_l > floor
        weights_r = (vectors_ll[:, keep].T @ statistics.cross()).square().sum(dim=1)
        return _Spectrum(statistics.num_examples, values_l[keep], weights_r, floor)

    def gcv(self, ridge: float) -> float:
        """n · RSS / (n − df)², in sums of non-negative terms: as λ → 0 with l ≥ n, RSS and n − df both vanish.

        RSS = (n − Σ b/d) + Σ λ² b / (d (d + λ)²)  and  n − df = (n − r) + Σ λ / (d + λ)  over the r eigenvalues d, with
        b = ‖qᵀU‖². The first bracket is what no head can explain: nothing, if there are as many directions as examples.
        """
        n, d, b = self.num_examples, self.values_r, self.weights_r
        unexplained = max(n - float((b / d).sum()), 0.0) if len(d) < n else 0.0
        rss = unexplained + float((ridge**2 * b / (d * (d + ridge) ** 2)).sum())
        freedom = max(n - len(d), 0) + float((ridge / (d + ridge)).sum())
        return n * rss / freedom**2


@dataclass(frozen=True, slots=True)
class FfcGcv:
    """Calibrate by FFC with the λ that generalised cross-validation chooses; clients do the same as for `Ffc`."""

    kind: ClassVar[str] = "ffc-gcv"

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client."""
        return Ffc().measure(model, batches)

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; a part that cannot be true is refused."""
        return Ffc().merge(total, part, context)

    def solve(self, total: Tensors, context: Context) -> "GcvSolution":
        """On the server, at the end."""
        statistics = Statistics.from_tensors(total)
        choice = choose_ridge(statistics)
        return GcvSolution(statistics.solve(choice.ridge), choice)


@dataclass(frozen=True, eq=False, slots=True)
class GcvSolution:
    """A solved head, and how its λ was chosen."""

    solution: Solution
    choice: RidgeChoice

    @property
    def weight(self) -> Tensor:
        return self.solution.weight

    def facts(self) -> dict[str, Fact]:
        """Everything but the weight."""
        grid: dict[str, Fact] = {"grid": list(self.choice.grid), "gcv": list(self.choice.scores)}
        return self.solution.facts() | grid
