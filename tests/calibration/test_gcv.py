"""λ by generalised cross-validation: the formula from the pooled data, and how it follows exact leave-one-out."""

import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.calibration import Context, Ffc, FfcGcv, gcv
from spherefed.calibration.ffc import Accumulator, truncated_unit_rows
from spherefed.calibration.gcv import choose_ridge


def measured(features, labels, num_classes):
    accumulator = Accumulator(features.shape[1], num_classes, torch.device("cpu"))
    accumulator.add(torch.from_numpy(features), torch.from_numpy(labels))
    return accumulator.total()


def unit_rows(features, labels, num_classes):
    rows, kept = truncated_unit_rows(torch.from_numpy(features))
    return (rows * 2.0**-20).numpy(), np.eye(num_classes)[labels[kept.numpy()]]


def random_problem(seed, *, imbalance, ratio=20):
    """Gaussian classes whose sizes run geometrically from 1 to `imbalance`, some with rectified features; n ≥ 20 l."""
    rng = np.random.default_rng(seed)
    dim, num_classes = int(rng.integers(8, 48)), int(rng.integers(2, 11))
    n = int(max(ratio * dim, 15 * num_classes * (imbalance + 1)))
    shares = np.geomspace(1, imbalance, num_classes)
    labels = rng.choice(num_classes, size=n, p=shares / shares.sum())
    scales = 10 ** rng.uniform(-1, 0.5, size=dim)
    noise = rng.uniform(0.3, 3) * rng.standard_normal((n, dim)) * scales
    features = rng.standard_normal((num_classes, dim))[labels] + noise
    return (np.maximum(features, 0) if seed % 2 else features), labels, num_classes


def leave_one_out(rows, targets, ridge):
    inverse = np.linalg.inv(rows.T @ rows + ridge * np.eye(rows.shape[1]))
    leverages = np.einsum("ni,ij,nj->n", rows, inverse, rows)
    residuals = targets - rows @ (inverse @ (rows.T @ targets))
    return float(np.mean((residuals**2).sum(axis=1) / (1 - leverages) ** 2))


def test_the_leave_one_out_oracle_leaves_one_out():
    features, labels, num_classes = random_problem(3, imbalance=1, ratio=2)
    rows, targets = unit_rows(features[:40], labels[:40], num_classes)
    errors = []
    for i in range(len(rows)):
        others = np.arange(len(rows)) != i
        gram = rows[others].T @ rows[others] + 0.3 * np.eye(rows.shape[1])
        weight = np.linalg.solve(gram, rows[others].T @ targets[others])
        errors.append(((targets[i] - rows[i] @ weight) ** 2).sum())
    assert leave_one_out(rows, targets, 0.3) == pytest.approx(np.mean(errors), rel=1e-9)


def test_scores_of_fewer_examples_than_features_are_the_dual_form_however_small_the_ridge():
    """GCV = n ‖(K + λI)⁻¹Y‖² / tr((K + λI)⁻¹)²  with K = ZZᵀ: λ² cancels, so nothing vanishes as λ → 0."""
    rng = np.random.default_rng(0)
    n, dim, num_classes = 12, 30, 3
    features, labels = rng.standard_normal((n, dim)), rng.integers(num_classes, size=n)
    rows, targets = unit_rows(features, labels, num_classes)
    spectrum = gcv._Spectrum.of(measured(features, labels, num_classes))
    for ridge in 10.0 ** np.arange(-10, 2):
        inverse = np.linalg.inv(rows @ rows.T + ridge * np.eye(n))
        expected = n * ((inverse @ targets) ** 2).sum() / np.trace(inverse) ** 2
        assert spectrum.gcv(ridge) == pytest.approx(expected, rel=1e-6)


def test_scores_are_the_formula_on_pooled_data():
    features, labels, num_classes = random_problem(1, imbalance=3, ratio=5)
    rows, targets = unit_rows(features, labels, num_classes)
    choice = choose_ridge(measured(features, labels, num_classes))
    n = len(rows)
    for ridge, score in zip(choice.grid, choice.scores, strict=True):
        weight = np.linalg.solve(rows.T @ rows + ridge * np.eye(rows.shape[1]), rows.T @ targets)
        smoother = rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(rows.shape[1]), rows.T)
        rss = ((targets - rows @ weight) ** 2).sum()
        assert score == pytest.approx(n * rss / (n - np.trace(smoother)) ** 2, rel=1e-8)
    assert choice.ridge == choice.grid[int(np.argmin(choice.scores))]
    assert np.allclose(np.diff(np.log10(choice.grid)), 0.5)


def compared(seed, *, imbalance):
    """Half-decades between GCV's and leave-one-out's λ, and how far its leave-one-out error is above the least."""
    features, labels, num_classes = random_problem(seed, imbalance=imbalance)
    rows, targets = unit_rows(features, labels, num_classes)
    unit = len(rows) / rows.shape[1]
    errors = {k: leave_one_out(rows, targets, unit * 10 ** (k / 2)) for k in range(-13, 7)}
    best = min(errors, key=errors.get)
    chosen = round(2 * np.log10(choose_ridge(measured(features, labels, num_classes)).ridge / unit))
    return abs(chosen - best), errors[chosen] / errors[best] - 1


@pytest.mark.parametrize("seed", range(20))
def test_gcv_follows_leave_one_out(seed):
    steps, excess = compared(seed, imbalance=1 if seed < 10 else 3)
    assert steps <= 1
    assert excess <= 0.02


def test_gcv_mostly_follows_leave_one_out_where_classes_are_ten_to_one():
    """Rare classes have high leverage, of which n, V and U know only the mean: 6 % of such problems are further."""
    outcomes = [compared(seed, imbalance=10) for seed in range(20)]
    assert sum(steps > 1 for steps, _ in outcomes) <= 2
    assert max(excess for _, excess in outcomes) <= 0.1


@pytest.mark.parametrize(("n", "dim"), [(1, 4), (8, 8), (20, 60), (50, 51)])
def test_as_many_dimensions_as_examples_give_a_defined_choice(n, dim):
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((n, dim)), rng.integers(3, size=n)
    statistics = measured(features, labels, 3)
    choice = choose_ridge(statistics)
    assert np.isfinite(choice.scores).all()
    assert min(choice.scores) > 0
    assert choice.ridge > 0
    assert statistics.solve(choice.ridge).weight.isfinite().all()


def test_the_grid_is_extended_beyond_an_edge():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 30))
    labels = rng.integers(3, size=2000)
    clean = choose_ridge(measured(centres[labels] + 1e-5 * rng.standard_normal((2000, 30)), labels, 3))
    assert clean.grid[0] < 2000 / 30 * 1e-6 * 0.9
    pure_noise = choose_ridge(measured(rng.standard_normal((300, 30)), rng.integers(3, size=300), 3))
    assert pure_noise.grid[-1] > 300 / 30 * 1e2 * 1.1 or not pure_noise.on_edge


def test_the_calibration_solves_with_the_chosen_ridge_and_says_so():
    features, labels, num_classes = random_problem(4, imbalance=3)
    statistics = measured(features, labels, num_classes)
    context = Context(head=torch.zeros(num_classes, features.shape[1]), seed=0, round=1)
    total = FfcGcv().merge(None, statistics.tensors(), context)
    solved = FfcGcv().solve(total, context)
    ridge = solved.summary()["ridge"]
    assert ridge in solved.summary()["grid"]
    assert len(solved.summary()["gcv"]) == len(solved.summary()["grid"])
    assert torch.equal(solved.weight, Ffc(ridge=ridge).solve(total, context).weight)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak memory is read from Linux's /proc")
def test_the_solve_takes_the_memory_of_three_matrices_beside_the_sums():
    num_classes, rng = 10, np.random.default_rng(0)

    def prepared(dim: int) -> tuple[Any, Context]:
        statistics = measured(rng.standard_normal((3000, dim)), rng.integers(num_classes, size=3000), num_classes)
        context = Context(head=torch.zeros(num_classes, dim), seed=0, round=1)
        return FfcGcv().merge(None, statistics.tensors(), context), context

    FfcGcv().solve(*prepared(50))  # the code of the solver, which is read into memory when it is first used
    dim = 2100  # a matrix of more than 32 MiB is mapped and unmapped by itself, without fragments
    total, context = prepared(dim)
    used = []
    for _ in range(3):  # the system adds a few megabytes, or keeps what was freed, now and then
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = peak_kilobytes()
        FfcGcv().solve(total, context)
        used.append((peak_kilobytes() - before) * 1024 / (8 * dim**2))
    assert 1 < median(used) < 3.5, used


def peak_kilobytes():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))
