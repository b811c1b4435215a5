"""Aggregation rules that bound what a few hostile clients can do, as values. `Mean` is the plain weighted mean.

A robust rule needs all updates at once: the server's memory is about 3K times the size of the model (the replies, their
copy as rows, the sorted rows), and Krum's work grows with K². Every client counts alike, because a hostile client can
claim any number of examples. Buffers and extras follow the same rule if it works by coordinates or selects
clients, otherwise by the coordinate-wise median.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.errors import ConfigError, FederationError


@dataclass(frozen=True, slots=True)
class Mean:
    """The weighted mean, added up while replies arrive; not robust: one client can move it anywhere."""

    kind: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class CoordinateMedian:
    """The median of each coordinate (Yin et al. 2018); the mean of the two middle values if K is even."""

    kind: ClassVar[str] = "median"

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        return _median(delta_KD), _median(others_KE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrimmedMean:
    """The mean of each coordinate without its ⌊trim·K⌋ smallest and largest values (Yin et al. 2018)."""

    kind: ClassVar[str] = "trimmed-mean"
    trim: float = 0.2
    """Fraction of the smallest and of the largest values that is left out, below 0.5."""

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ConfigError(f"algorithm.aggregation.trim must be in [0, 0.5), got {self.trim}")

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        num = int(self.trim * len(delta_KD) + 1e-9)
        trimmed = [rows.sort(dim=0).values[num : len(rows) - num].mean(dim=0) for rows in (delta_KD, others_KE)]
        return trimmed[0], trimmed[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Krum:
    """The update with the smallest sum of squared distances to its K − f − 2 nearest ones (Blanchard et al. 2017)."""

    kind: ClassVar[str] = "krum"
    hostile: int
    """f, the largest number of hostile clients in a cohort; it needs K ≥ 2f + 3."""

    def __post_init__(self) -> None:
        _check_hostile(self.hostile)

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        best = int(_krum_scores(delta_KD, self.hostile, self.kind).argmin())
        return delta_KD[best], others_KE[best]


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiKrum:
    """The mean of the K − f updates with the smallest scores of Krum (Blanchard et al. 2017)."""

    kind: ClassVar[str] = "multi-krum"
    hostile: int
    """f, the largest number of hostile clients in a cohort; it needs K ≥ 2f + 3."""

    def __post_init__(self) -> None:
        _check_hostile(self.hostile)

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        order = _krum_scores(delta_KD, self.hostile, self.kind).argsort(stable=True)
        chosen = order[: len(delta_KD) - self.hostile].sort().values
        return delta_KD[chosen].mean(dim=0), others_KE[chosen].mean(dim=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class NormClipping:
    """The mean of updates that are scaled down to a norm of at most τ (Sun et al. 2019)."""

    kind: ClassVar[str] = "norm-clipping"
    max_norm: float | None = None
    """τ; none: the median norm of the cohort."""

    def __post_init__(self) -> None:
        _check_radius("max_norm", self.max_norm)

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        return _clipped(delta_KD, self.max_norm).mean(dim=0), _median(others_KE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CentredClipping:
    """v ← v + mean_k clip(Δ_k − v, τ), repeated (Karimireddy et al. 2021).

    Deviation: v starts at the coordinate-wise median of the cohort, not at the aggregate of the round before, so that
    the server keeps no further state.
    """

    kind: ClassVar[str] = "centred-clipping"
    radius: float | None = None
    """τ; none: the median distance of the cohort from v."""
    iterations: int = 3
    """How often v is updated."""

    def __post_init__(self) -> None:
        _check_radius("radius", self.radius)
        if self.iterations < 1:
            raise ConfigError(f"algorithm.aggregation.iterations must be at least 1, got {self.iterations}")

    def aggregate(self, delta_KD: Tensor, others_KE: Tensor) -> tuple[Tensor, Tensor]:
        centre_D = _median(delta_KD)
        for _ in range(self.iterations):
            centre_D = centre_D + _clipped(delta_KD - centre_D, self.radius).mean(dim=0)
        return centre_D, _median(others_KE)


RobustRule = CoordinateMedian | TrimmedMean | Krum | MultiKrum | NormClipping | CentredClipping
Aggregation = Mean | RobustRule


def _median(rows_KD: Tensor) -> Tensor:
    """By sorting: torch.median takes the lower of the two middle values."""
    ordered, num = rows_KD.sort(dim=0).values, len(rows_KD)
    middle: Tensor = (ordered[(num - 1) // 2] + ordered[num // 2]) / 2
    return middle


def _clipped(rows_KD: Tensor, radius: float | None) -> Tensor:
    norms_K1 = torch.linalg.vector_norm(rows_KD, dim=1, keepdim=True)
    limit = _median(norms_K1) if radius is None else radius
    scale_K1: Tensor = (limit / norms_K1.clamp_min(torch.finfo(rows_KD.dtype).tiny)).clamp_max(1)
    return rows_KD * scale_K1


def _krum_scores(rows_KD: Tensor, hostile: int, kind: str) -> Tensor:
    """Σ ‖Δ_i − Δ_j‖² over the K − f − 2 nearest j ≠ i."""
    num = len(rows_KD)
    if num < 2 * hostile + 3:
        raise FederationError(
            f"aggregation {kind!r} with hostile = {hostile} needs at least {2 * hostile + 3} replies, got {num}; "
            "--resume repeats the round"
        )
    squares_KK = torch.cdist(rows_KD, rows_KD, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = squares_KK.sort(dim=1).values[:, 1 : num - hostile - 1]  # without the distance to itself
    return nearest.sum(dim=1)


def _check_hostile(hostile: int) -> None:
    if hostile < 0:
        raise ConfigError(f"algorithm.aggregation.hostile must not be negative, got {hostile}")


def _check_radius(name: str, radius: float | None) -> None:
    if radius is not None and not radius > 0:
        raise ConfigError(f"algorithm.aggregation.{name} must be positive or none, got {radius}")
