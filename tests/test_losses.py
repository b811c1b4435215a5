"""Losses against their formulas written as loops in plain Python."""

import math

import pytest
import torch
from torch import Tensor

from spherefed.errors import ConfigError
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError, one_hot, sphere_mse

LOSSES = [CrossEntropy(), CrossEntropy(scale=10.0), MeanSquaredError()]


@pytest.fixture
def scores() -> Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 1, 2, 3, 3, 1, 0])


def by_hand(loss: Loss, scores: Tensor, labels: Tensor) -> list[float]:
    """The loss of each example, term by term: Eq. 5 of SphereFed, or −log softmax(τ · scores)."""
    values = []
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        if isinstance(loss, MeanSquaredError):
            values.append(sum((s - (c == label)) ** 2 for c, s in enumerate(row)) / len(row))
        else:
            exponentials = [math.exp(loss.scale * s) for s in row]
            values.append(-math.log(exponentials[label] / math.fsum(exponentials)))
    return values


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_loss_is_the_mean_over_examples_of_its_formula(loss: Loss, scores: Tensor, labels: Tensor) -> None:
    expected = by_hand(loss, scores, labels)
    assert loss(scores, labels).item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)
    assert loss.per_example(scores, labels).tolist() == pytest.approx(expected, rel=1e-12)


def test_sphere_mse_is_the_loss_of_equation_5(scores: Tensor, labels: Tensor) -> None:
    expected = by_hand(MeanSquaredError(), scores, labels)
    assert sphere_mse(scores, labels).item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_gradient_is_the_slope_of_the_formula(loss: Loss, scores: Tensor, labels: Tensor) -> None:
    """Central differences of the loop above."""
    leaf, step = scores.clone().requires_grad_(), 1e-6
    loss(leaf, labels).backward()
    assert leaf.grad is not None
    for i in range(len(labels)):
        for c in range(scores.shape[1]):
            up, down = scores.clone(), scores.clone()
            up[i, c] += step
            down[i, c] -= step
            slope = (sum(by_hand(loss, up, labels)) - sum(by_hand(loss, down, labels))) / (2 * step * len(labels))
            assert leaf.grad[i, c].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_targets_have_one_in_the_column_of_the_label_and_the_type_of_the_scores(dtype: torch.dtype) -> None:
    found = one_hot(torch.zeros(3, 4, dtype=dtype), torch.tensor([2, 0, 3]))
    assert found.dtype == dtype
    assert found.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"loss\.scale must be positive"):
        CrossEntropy(scale=scale)
