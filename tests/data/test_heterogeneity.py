"""Figures of a partition against scipy, pair by pair."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from spherefed.data.heterogeneity import heterogeneity
from spherefed.data.partition import (
    Dirichlet,
    Partition,
    partition,
)
from support.small import random_labels


def test_figures_equal_scipy_pair_by_pair():
    labels = random_labels(500, 6)
    outcome = partition(Dirichlet(alpha=0.3, clients=7), labels, 6, np.random.default_rng(0))
    shares = [row / row.sum() for row in outcome.label_counts if row.sum()]
    pairs = [jensenshannon(p, q, base=2) for i, p in enumerate(shares) for q in shares[i + 1 :]]
    figures = heterogeneity(outcome)
    assert figures.mean_js_distance == pytest.approx(np.mean(pairs))
    entropies = [-sum(p * np.log(p) for p in row if p) for row in shares]
    assert figures.mean_effective_classes == pytest.approx(np.mean(np.exp(entropies)))


def test_figures_of_empty_clients_are_counted_not_divided_by_zero():
    outcome = Partition((np.array([0, 1]), np.array([], dtype=np.int64)), np.array([[1, 1], [0, 0]]))
    figures = heterogeneity(outcome)
    assert figures.num_empty == 1
    assert figures.effective_classes == pytest.approx((2.0, 0.0))
    assert figures.mean_js_distance == 0.0
