"""Figures that say how different the clients of a partition are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spherefed.data.partition import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Heterogeneity:
    """A partition in a few numbers; clients without examples have no label distribution and are left out of means."""

    mean_js_distance: float
    """Mean over pairs of clients of the Jensen–Shannon distance of their label distributions: 0 equal, 1 disjoint."""
    mean_effective_classes: float
    """Mean over clients of exp(entropy of the label distribution): C for a uniform one, 1 for a single class."""
    effective_classes: tuple[float, ...]
    """Per client; 0 for one without examples."""
    min_size: int
    median_size: float
    max_size: int
    num_empty: int


def heterogeneity(partition: Partition) -> Heterogeneity:
    """Measure a partition by its client × class counts."""
    sizes = partition.sizes
    filled = partition.label_counts[sizes > 0].astype(np.float64)
    effective = np.zeros(len(sizes))
    shares = filled / filled.sum(axis=1, keepdims=True)
    effective[sizes > 0] = np.exp(_entropy(shares))
    return Heterogeneity(
        mean_js_distance=mean_js_distance(shares),
        mean_effective_classes=float(effective[sizes > 0].mean()) if len(shares) else 0.0,
        effective_classes=tuple(float(number) for number in effective),
        min_size=int(sizes.min()),
        median_size=float(np.median(sizes)),
        max_size=int(sizes.max()),
        num_empty=int((sizes == 0).sum()),
    )


def mean_js_distance(shares: "NDArray[np.float64]") -> float:
    """Mean pairwise √JSD in bits, JSD(p, q) = H((p + q)/2) − (H(p) + H(q))/2; 0 for fewer than two rows.

    >>> mean_js_distance(np.array([[1.0, 0.0], [0.0, 1.0]]))
    1.0
    """
    num = len(shares)
    if num < 2:
        return 0.0
    entropies = _entropy(shares)
    total = 0.0
    for i in range(num - 1):  # row by row: all pairs at once would need clients² × classes numbers
        mixed = _entropy((shares[i] + shares[i + 1 :]) / 2)
        divergence = mixed - (entropies[i] + entropies[i + 1 :]) / 2
        total += float(np.sqrt(np.maximum(divergence, 0.0) / np.log(2)).sum())
    return total / (num * (num - 1) / 2)


def _entropy(shares: "NDArray[np.float64]") -> "NDArray[np.float64]":
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(axis=1))
