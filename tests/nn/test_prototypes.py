"""Rows of fixed heads: what they promise exactly, and what a search promises at least."""

import numpy as np
import pytest
import torch
from torch import nn

from spherefed.errors import ConfigError
from spherefed.nn import prototypes
from spherefed.nn.classifier import hyperspherical
from spherefed.nn.heads import Orthonormal, Tammes
from spherefed.rng import Purpose, stream


def rows_of(kind, num_classes, dim, seed=0, **fields):
    return getattr(prototypes, kind)(num_classes, dim, stream(seed, Purpose.HEAD), **fields)


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 1), (2, 5), (10, 9), (10, 10), (11, 10), (100, 1280)])
def test_simplex_rows_are_of_unit_length_with_equal_angles(num_classes, dim):
    rows = rows_of("simplex", num_classes, dim)
    assert rows.shape == (num_classes, dim)
    assert rows.dtype == torch.float64
    for i in range(0, num_classes, max(1, num_classes // 10)):
        for j in range(num_classes):
            wanted = 1.0 if i == j else -1 / (num_classes - 1)
            assert abs(float(rows[i] @ rows[j]) - wanted) < 1e-12
    assert rows.sum(dim=0).abs().max() < 1e-12
    assert prototypes.coherence(rows) == pytest.approx(-1 / (num_classes - 1), abs=1e-12)


def test_simplex_refuses_more_classes_than_dimensions_allow():
    with pytest.raises(ConfigError, match=r"classes - 1, got 10 < 11; .*head='tammes'"):
        rows_of("simplex", 12, 10)


def test_orthonormal_suggests_a_head_that_serves():
    with pytest.raises(ConfigError, match=r"got 4 < 9; use a wider encoder or head='tammes'"):
        rows_of("orthonormal", 9, 4)
    with pytest.raises(ConfigError, match=r"head='etf' or head='tammes'"):
        rows_of("orthonormal", 5, 4)


def mean_of_largest_cosines(rows):
    cosines = np.asarray(rows) @ np.asarray(rows).T
    return np.mean([max(cosines[i][j] for j in range(len(rows)) if j != i) for i in range(len(rows))])


@pytest.mark.parametrize(("num_classes", "dim"), [(4, 2), (10, 4), (20, 20), (12, 40)])
def test_tammes_rows_are_of_unit_length_and_further_apart_than_random_ones(num_classes, dim):
    rows = rows_of("tammes", num_classes, dim, steps=2000)
    start = rows_of("tammes", num_classes, dim, steps=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(num_classes, dtype=torch.float64), rtol=0, atol=1e-12)
    assert prototypes.coherence(rows) < prototypes.coherence(start)
    assert mean_of_largest_cosines(rows) < mean_of_largest_cosines(start)
    assert prototypes.coherence(rows) >= -1 / (num_classes - 1) - 1e-12


def test_tammes_finds_the_square_in_the_plane():
    assert prototypes.coherence(rows_of("tammes", 4, 2)) < 0.02


@pytest.mark.parametrize(("num_classes", "dim"), [(7, 3), (5, 9)])
def test_tammes_follows_torch_sgd_on_the_same_objective(num_classes, dim):
    """An oracle by autograd, in all l dimensions, that also keeps the best rows it meets."""
    start = rows_of("tammes", num_classes, dim, steps=0)
    rows = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([rows], lr=0.1, momentum=0.9)
    seen = [start]
    for _ in range(25):
        cosines = rows @ rows.T - 3 * torch.eye(num_classes, dtype=torch.float64)
        sgd.zero_grad()
        cosines.max(dim=1).values.mean().backward()
        sgd.step()
        with torch.no_grad():
            rows /= rows.norm(dim=1, keepdim=True)
        seen.append(rows.detach().clone())
    best = min(seen, key=mean_of_largest_cosines)
    torch.testing.assert_close(rows_of("tammes", num_classes, dim, steps=25), best, rtol=0, atol=1e-11)


def test_tammes_refuses_values_that_cannot_search():
    for fields in ({"steps": -1}, {"lr": 0.0}, {"momentum": 1.0}):
        with pytest.raises(ConfigError, match=r"model\.head"):
            Tammes(**fields)


@pytest.mark.parametrize(("num_classes", "dim"), [(1, 1), (2, 2), (10, 10), (10, 64), (100, 512)])
def test_orthonormal_rows_have_unit_length_and_right_angles(num_classes: int, dim: int) -> None:
    exact = prototypes.orthonormal(num_classes, dim, stream(3, Purpose.HEAD))
    assert torch.allclose(exact @ exact.T, torch.eye(num_classes, dtype=torch.float64), atol=1e-14)
    weight = Orthonormal().build(num_classes, dim, 3).weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, exact.float())


def test_more_classes_than_dimensions_have_no_orthonormal_rows() -> None:
    with pytest.raises(ConfigError, match="9 < 10"):
        Orthonormal().build(10, 9, 0)
    with pytest.raises(ConfigError, match="9 < 10"):
        hyperspherical(nn.Identity(), 10)(torch.randn(2, 9))


def test_orthonormal_rows_do_not_depend_on_the_sign_convention_of_qr() -> None:
    rng = stream(1, Purpose.HEAD)
    gauss = rng.standard_normal((6, 4))
    rows = prototypes.orthonormal(4, 6, stream(1, Purpose.HEAD)).numpy()
    for k in range(4):  # Gram–Schmidt's own convention: each vector points along the draw it came from
        assert rows[k] @ gauss[:, k] > 0
