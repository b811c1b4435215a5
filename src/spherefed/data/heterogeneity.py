"""Measures of the heterogeneity of a partition: how much label distributions and sizes differ between clients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spherefed.data.partition import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Heterogeneity:
    """Heterogeneity of a partition. Means exclude clients without examples, which have no label distribution."""

    mean_js_distance: float
    """Mean Jensen–Shannon distance between the label distributions of two clients: 0 if equal, 1 if disjoint."""
    mean_effective_classes: float
    """Mean over clients of exp(entropy of the label distribution): C if it is uniform, 1 for a single class."""
    effective_classes: tuple[float, ...]
    """Per client; 0 for a client without examples."""
    min_size: int
    median_size: float
    max_size: int
    num_empty: int


def heterogeneity(partition: Partition) -> Heterogeneity:
    """Compute the measures from the (clients, classes) label counts."""
    sizes = partition.sizes
    counts = partition.label_counts[sizes > 0].astype(np.float64)
    effective = np.zeros(len(sizes))
    shares = counts / counts.sum(axis=1, keepdims=True)
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
    for i in range(num - 1):  # one row at a time: all pairs at once need memory for clients² × classes numbers
        mixture_entropies = _entropy((shares[i] + shares[i + 1 :]) / 2)
        divergence = mixture_entropies - (entropies[i] + entropies[i + 1 :]) / 2
        total += float(np.sqrt(np.maximum(divergence, 0.0) / np.log(2)).sum())
    return total / (num * (num - 1) / 2)


def _entropy(shares: "NDArray[np.float64]") -> "NDArray[np.float64]":
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(axis=1))
