"""The refit of a head: torch's SGD, and an error where it diverges."""

import numpy as np
import pytest
import torch

from spherefed.calibration.refit import Refit, refit
from spherefed.errors import CalibrationError
from spherefed.losses import CrossEntropy, MeanSquaredError
from support.given_features import (
    DIM,
    NUM_CLASSES,
    a_head,
)


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(scale=4.0), MeanSquaredError()])
def test_refit_is_torch_sgd_on_the_head(loss):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, DIM, generator=generator, dtype=torch.float64)
    labels = torch.arange(30) % NUM_CLASSES
    weight = torch.nn.Parameter(a_head())
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.5)
    order = np.random.default_rng(1)
    for _ in range(4):
        for chosen in torch.from_numpy(order.permutation(30)).split(7):
            sgd.zero_grad()
            loss(features[chosen] @ weight.T, labels[chosen]).backward()
            sgd.step()
    how = Refit(lr=0.1, momentum=0.5, epochs=4, batch_size=7, loss=loss)
    mine = refit(a_head(), features, labels, how, np.random.default_rng(1))
    torch.testing.assert_close(mine.weight, weight.detach(), rtol=0, atol=1e-12)
    assert mine.num_steps == 20


def test_a_diverging_refit_is_an_error():
    with pytest.raises(CalibrationError, match=r"diverged; lower calibration\.refit\.lr"):
        refit(a_head(), 1e9 * torch.ones(5, DIM, dtype=torch.float64), torch.arange(5),
              Refit(lr=1e300, loss=MeanSquaredError()), np.random.default_rng(0))  # fmt: skip
