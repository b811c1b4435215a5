"""Random feature maps: their kernels, their norms, and that they do not depend on the batch."""

import numpy as np
import pytest
import torch

from spherefed.errors import ConfigError
from spherefed.nn.feature_maps import FeatureMap, RandomFourier, RandomRelu, unit_rows

MAPS = [RandomFourier(dim=64, bandwidth=0.5), RandomRelu(dim=50)]


def features(num: int, dim: int = 30) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal((num, dim))).float()


def test_fourier_features_have_unit_norm_and_approximate_the_gaussian_kernel() -> None:
    sigma, rows = 0.7, features(40)
    mapped = RandomFourier(dim=40_000, bandwidth=sigma).build(30, 0)(rows).double().numpy()
    np.testing.assert_allclose((mapped**2).sum(axis=1), 1.0, atol=1e-6)
    unit = rows.double().numpy()
    unit /= np.sqrt((unit**2).sum(axis=1, keepdims=True))
    kernel = np.array([[np.exp(-((x - y) ** 2).sum() / (2 * sigma**2)) for y in unit] for x in unit])
    np.testing.assert_allclose(mapped @ mapped.T, kernel, atol=0.03)  # standard error 1/√40,000 = 0.005


def test_relu_features_approximate_the_arc_cosine_kernel() -> None:
    rows, dim = features(20), 40_000
    mapped = RandomRelu(dim=dim).build(30, 0)(rows).double().numpy()
    unit = rows.double().numpy()
    unit /= np.sqrt((unit**2).sum(axis=1, keepdims=True))
    angle = np.arccos(np.clip(unit @ unit.T, -1, 1))
    kernel = (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)  # Cho & Saul 2009, degree 1
    np.testing.assert_allclose(mapped @ mapped.T / dim, kernel, atol=0.03)


@pytest.mark.parametrize("kind", MAPS)
def test_mapped_features_equal_a_direct_computation(kind: FeatureMap) -> None:
    rows, module = features(9), kind.build(30, 3)
    z = np.trunc(rows.double().numpy() / np.linalg.norm(rows.double().numpy(), axis=1, keepdims=True) * 2**20) / 2**20
    projected = np.array([[float(x @ w) for w in module.directions.numpy().T] for x in z])
    if isinstance(kind, RandomFourier):
        expected = np.concatenate([np.cos(projected), np.sin(projected)], axis=1) / np.sqrt(kind.dim / 2)
    else:
        expected = np.maximum(projected, 0)
    np.testing.assert_allclose(module(rows).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_mapped_features_do_not_depend_on_the_batch(kind: FeatureMap, size: int) -> None:
    rows, module = features(150), kind.build(30, 0)
    assert torch.equal(torch.cat([module(part) for part in torch.split(rows, size)]), module(rows))


@pytest.mark.parametrize("kind", MAPS)
def test_directions_follow_from_the_seed(kind: FeatureMap) -> None:
    first, again, other = (kind.build(30, seed).directions for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_zero_rows_stay_zero_and_rows_that_are_not_finite_stay_visible() -> None:
    assert not unit_rows(torch.zeros(1, 4)).any()
    broken = RandomFourier(dim=4).build(2, 0)(torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]]))
    assert broken.isnan().any(dim=1).all()


def test_impossible_maps_are_refused() -> None:
    for make in (
        lambda: RandomFourier(dim=3),
        lambda: RandomFourier(bandwidth=0.0),
        lambda: RandomFourier(bandwidth=float("nan")),
        lambda: RandomRelu(dim=0),
        lambda: RandomFourier(bandwidth=1e-4).build(64, 0),
    ):
        with pytest.raises(ConfigError, match=r"model\.feature_map"):
            make()
