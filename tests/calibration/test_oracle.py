"""The oracle: a head trained on the pooled features, near the closed form under MSE."""

import numpy as np
import pytest
import torch

from spherefed.calibration import Ffc, Oracle
from spherefed.calibration.refit import Refit
from spherefed.errors import CalibrationError
from spherefed.losses import MeanSquaredError
from support.given_features import (
    DIM,
    NUM_CLASSES,
    a_head,
    context_for,
    merged_whole,
)


def test_the_oracle_refuses_what_does_not_fit():
    good = {"features": torch.zeros(3, DIM), "labels": torch.tensor([0, 1, 4])}
    Oracle().merge(None, good, context_for(a_head()))
    for change in (
        {"labels": torch.tensor([0, 1, 5])},
        {"labels": torch.tensor([0, 1])},
        {"features": torch.ones(3, 2)},
    ):
        with pytest.raises(CalibrationError):
            Oracle().merge(None, good | change, context_for(a_head()))


def test_the_oracle_comes_near_the_closed_form_under_mse():
    """Table 4: SGD on the pooled features and the closed form have the same optimum."""
    rng = np.random.default_rng(2)
    labels = rng.integers(NUM_CLASSES, size=400)
    features = rng.standard_normal((400, DIM)) + 2 * np.eye(NUM_CLASSES, DIM)[labels]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    parts = [(features[k::2], labels[k::2]) for k in range(2)]
    context = context_for(a_head())
    oracle = Oracle(refit=Refit(lr=2.0, epochs=600, batch_size=None, loss=MeanSquaredError()))
    by_sgd = oracle.solve(merged_whole(oracle, parts, context), context).weight
    closed = Ffc().solve(merged_whole(Ffc(), parts, context), context).weight
    np.testing.assert_allclose(by_sgd, closed, atol=2e-4)
