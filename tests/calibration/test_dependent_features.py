"""FFC and LDA on linearly dependent features: truncation must not be mistaken for directions that the features have."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spherefed.calibration import Context, Lda
from spherefed.calibration.ffc import Statistics, statistics
from spherefed.calibration.gcv import choose_ridge
from spherefed.calibration.solution import solve
from spherefed.client.personalization import BlendedFfc
from spherefed.nn.classifier import Classifier, hyperspherical


def dependent_rows(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Unit rows of a known rank below l, and labels."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(8, 80))
    rank = int(rng.integers(2, dim // 2))
    num = int(rng.integers(2 * dim, 6 * dim))
    rows = rng.normal(size=(num, rank)) @ rng.normal(size=(rank, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), rng.integers(4, size=num), rank


def identity(dim: int) -> Classifier:
    return hyperspherical(nn.Identity(), num_classes=4, dim=dim)


def measured(rows: np.ndarray, labels: np.ndarray) -> Statistics:
    return statistics(identity(rows.shape[1]), [(torch.from_numpy(rows), torch.from_numpy(labels))])


def minimum_norm_head(rows: np.ndarray, labels: np.ndarray, rank: int) -> np.ndarray:
    """By singular values of the rows before truncation, of which the first `rank` are not zero."""
    left, singular, right = np.linalg.svd(rows, full_matrices=False)
    return ((left[:, :rank] / singular[:rank]).T @ np.eye(4)[labels]).T @ right[:rank]


@pytest.mark.parametrize("seed", range(30))
def test_dependent_features_give_the_rank_and_the_minimum_norm_head_of_the_rows_before_truncation(seed: int) -> None:
    rows, labels, rank = dependent_rows(seed)
    solution = measured(rows, labels).solve()
    expected = minimum_norm_head(rows, labels, rank)
    condition = np.linalg.svd(rows, compute_uv=False)[[0, rank - 1]]
    assert (solution.path, solution.rank, solution.dropped) == ("eigh", rank, rows.shape[1] - rank)
    tolerance = 1e-5 * (condition[0] / condition[1]) ** 2
    assert np.linalg.norm(solution.weight.numpy() - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize("seed", range(30))
def test_truncation_gives_no_more_than_the_noise_floor_to_directions_without_features(seed: int) -> None:
    rows, labels, rank = dependent_rows(seed)
    found = measured(rows, labels)
    values = np.linalg.eigvalsh(found.gram().numpy())
    nulls = values[: rows.shape[1] - rank]
    assert nulls.max() > rows.shape[1] * 2.0**-52 * values[-1], "else the case shows nothing"
    assert nulls.max() <= found.noise_floor == pytest.approx(len(rows) * rows.shape[1] * 2.0**-40)


def test_a_final_layer_norm_costs_exactly_one_direction() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 48)) ** 3
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.integers(4, size=600)
    solution = measured(rows, labels).solve()
    expected = minimum_norm_head(rows, labels, 47)
    assert (solution.rank, solution.dropped) == (47, 1)
    assert np.linalg.norm(solution.weight.numpy() - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("seed", range(20))
def test_a_regular_system_has_the_bits_of_a_plain_cholesky_solve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(2, 60))
    rows = np.abs(rng.normal(size=(6 * dim, dim)))
    found = measured(rows, rng.integers(4, size=len(rows)))
    for ridge in (0.0, 0.5):
        system = found.gram() + ridge * torch.eye(dim, dtype=torch.float64)
        plain = torch.cholesky_solve(found.cross(), torch.linalg.cholesky(system)).T
        solution = found.solve(ridge)
        assert solution.path == "cholesky"
        assert torch.equal(solution.weight, plain)


def test_a_smallest_eigenvalue_just_above_the_noise_keeps_the_bits_of_cholesky() -> None:
    """The 1-norm of the inverse bounds the smallest eigenvalue from below only; then eigenvalues decide."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    gram = torch.from_numpy((basis * np.geomspace(1e-6, 1, 30)) @ basis.T)
    gram, cross = (gram + gram.T) / 2, torch.from_numpy(rng.normal(size=(30, 3)))
    plain = solve(gram, cross, 0.0)
    above, below = solve(gram, cross, 0.0, noise=0.99e-6), solve(gram, cross, 0.0, noise=1.01e-6)
    assert torch.equal(above.weight, plain.weight)
    assert (above.path, above.dropped, below.path, below.dropped) == ("cholesky", 0, "eigh", 1)


@pytest.mark.parametrize("seed", range(10))
def test_gcv_scores_of_dependent_features_equal_those_of_the_rows_before_truncation(seed: int) -> None:
    rows, labels, rank = dependent_rows(seed)
    choice = choose_ridge(measured(rows, labels))
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    num, targets = len(rows), np.eye(4)[labels]
    for ridge, score in zip(choice.grid, choice.scores, strict=True):
        shrink = singular[:rank] ** 2 / (singular[:rank] ** 2 + ridge)
        residual = targets - (left[:, :rank] * shrink) @ (left[:, :rank].T @ targets)
        expected = num * (residual**2).sum() / (num - shrink.sum()) ** 2
        assert score == pytest.approx(expected, rel=1e-4)


def test_a_blend_of_dependent_features_has_the_minimum_norm() -> None:
    rows, labels, rank = dependent_rows(5)
    own, others = slice(0, len(rows) // 3), slice(len(rows) // 3, None)
    gamma = 0.25
    heads: list[Tensor] = []

    class Context:
        def statistics(self) -> Statistics:
            return measured(rows[own], labels[own])

        def set_head(self, weight: Tensor) -> None:
            heads.append(weight)

    received = measured(rows[others], labels[others]).tensors()
    BlendedFfc(gamma=gamma).apply(Context(), received)  # type: ignore[arg-type]
    weights = np.where(np.arange(len(rows)) < len(rows) // 3, 1.0, gamma**0.5)[:, None]
    left, singular, right = np.linalg.svd(weights * rows, full_matrices=False)
    targets = weights * np.eye(4)[labels]
    expected = ((left[:, :rank] / singular[:rank]).T @ targets).T @ right[:rank]
    assert np.linalg.norm(heads[0].numpy() - expected) < 1e-3 * np.linalg.norm(expected)


def test_a_ridge_above_the_noise_keeps_every_direction() -> None:
    rows, labels, _ = dependent_rows(1)
    found = measured(rows, labels)
    floor = found.noise_floor
    assert found.solve(1.1 * floor).dropped == 0
    assert found.solve(1.1 * floor).ridge == 1.1 * floor


@pytest.mark.parametrize("seed", range(20))
def test_lda_on_dependent_features_is_the_minimum_norm_head_of_the_rows_before_truncation(seed: int) -> None:
    """score_c(z) = μ_cᵀΣ̂⁻¹z + b_c uᵀz, with the shortest u for which uᵀz is closest to 1, by `lstsq` on the rows."""
    rows, labels, rank = dependent_rows(seed)
    dim, counts_c = rows.shape[1], np.bincount(labels, minlength=4)
    means_cl = np.stack([rows[labels == c].mean(axis=0) for c in range(4)])
    scatter_ll = (rows - means_cl[labels]).T @ (rows - means_cl[labels]) / len(rows)
    shrunk_ll = 0.9 * scatter_ll + 0.1 * np.trace(scatter_ll) / dim * np.eye(dim)
    direction_lc = np.linalg.solve(shrunk_ll, means_cl.T)
    constant_c = -0.5 * (direction_lc * means_cl.T).sum(axis=0) + np.log(counts_c / len(rows))
    intercept_l, _, found, singular = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=1e-9)
    assert found == rank
    expected = (direction_lc + np.outer(intercept_l, constant_c)).T
    model, context = identity(dim), Context(head=torch.zeros(4, dim), seed=0, round=0)
    part = Lda().measure(model, [(torch.from_numpy(rows), torch.from_numpy(labels))])
    weight = Lda().solve(Lda().merge(None, part, context), context).weight.numpy()
    tolerance = 1e-3 * (singular[0] / singular[rank - 1])  # Σ̂⁻¹ amplifies what truncation leaves of the means
    assert np.linalg.norm(weight - expected) <= tolerance * np.linalg.norm(expected)
