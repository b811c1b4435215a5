"""Heads from class statistics: ncm, lda, fedcof and class-balanced ridge against oracles in numpy and scikit-learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from spherefed.calibration import BalancedFfc, Context, FedCof, Lda, Ncm
from spherefed.calibration.class_sums import ClassSums
from spherefed.errors import CalibrationError, ConfigError
from spherefed.nn.classifier import Classifier, hyperspherical
from spherefed.tensors import Tensors, num_bytes

Array = NDArray[np.float64]
DIM, CLASSES, CLIENTS = 12, 4, 6
HEADS = [Ncm(), Lda(shrinkage=0.2), FedCof(shrinkage=0.4), BalancedFfc()]


def problem(seed: int = 0, num: int = 300) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Unit features of unequal classes whose last entry is constant, labels, and who has which example."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=num, p=[0.55, 0.25, 0.15, 0.05])
    rows = rng.standard_normal((CLASSES, DIM - 1))[labels] + rng.standard_normal((num, DIM - 1)) * 0.8
    rows *= np.sqrt(0.91) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.concatenate([rows, np.full((num, 1), 0.3)], axis=1), labels, rng.integers(CLIENTS, size=num)


def identity(num_classes: int = CLASSES, dim: int = DIM) -> Classifier:
    return hyperspherical(nn.Identity(), num_classes, dim)


def truncated(rows: Array) -> Array:
    return np.trunc(rows / np.linalg.norm(rows, axis=1, keepdims=True) * 2**20) / 2**20


def parts_of(head: Any, rows: Array, labels: NDArray[np.int64], owners: NDArray[np.int64]) -> list[Tensors]:
    parts = []
    for client in range(CLIENTS):
        own = owners == client
        batch = (torch.from_numpy(rows[own]), torch.from_numpy(labels[own]))
        parts.append(head.measure(identity(), list(zip(batch[0].split(7), batch[1].split(7), strict=True))))
    return parts


def context() -> Context:
    return Context(head=torch.zeros(CLASSES, DIM), seed=0, round=0)


def solved(head: Any, parts: Sequence[Tensors]) -> Array:
    total = None
    for part in parts:
        total = head.merge(total, part, context())
    weight: Array = head.solve(total, context()).weight.numpy()
    return weight


def class_means(z: Array, y: NDArray[np.int64]) -> Array:
    return np.array([z[y == c].mean(axis=0) for c in range(CLASSES)])


def test_ncm_is_the_direction_of_the_class_means() -> None:
    rows, y, owners = problem()
    means = class_means(truncated(rows), y)
    expected = np.array([m / np.sqrt(m @ m) for m in means])
    np.testing.assert_allclose(solved(Ncm(), parts_of(Ncm(), rows, y, owners)), expected, atol=1e-8)


@pytest.mark.parametrize("shrinkage", [0.01, 0.2, 1.0])
def test_lda_scores_are_those_of_scikit_learn(shrinkage: float) -> None:
    rows, y, owners = problem()
    z = truncated(rows)
    head = Lda(shrinkage=shrinkage)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(z, y)
    scores = z @ solved(head, parts_of(head, rows, y, owners)).T
    np.testing.assert_allclose(scores, oracle.decision_function(z), atol=1e-8 * np.abs(scores).max())


def test_lda_reports_how_well_the_features_express_a_constant() -> None:
    rows, y, owners = problem()

    def error(rows: Array) -> float:
        head, total = Lda(), None
        for part in parts_of(head, rows, y, owners):
            total = head.merge(total, part, context())
        assert total is not None
        return float(head.solve(total, context()).summary()["intercept_rmse"])

    assert error(rows) < 1e-5
    without = rows.copy()
    without[:, -1] = np.random.default_rng(0).standard_normal(len(rows))
    z = truncated(without)
    u = np.linalg.lstsq(z, np.ones(len(z)), rcond=None)[0]
    assert error(without) == pytest.approx(float(np.sqrt(np.mean((1 - z @ u) ** 2))), rel=1e-6)
    assert error(without) > 0.1


def test_fedcof_is_the_ridge_of_the_scatter_of_client_means() -> None:
    rows, y, owners = problem()
    z, s = truncated(rows), 0.4
    scatter = np.zeros((DIM, DIM))
    for c in range(CLASSES):
        own, mean = z[y == c], z[y == c].mean(axis=0)
        clients = [k for k in range(CLIENTS) if ((y == c) & (owners == k)).any()]
        covariance = np.zeros((DIM, DIM))
        for k in clients:
            mine = z[(y == c) & (owners == k)]
            covariance += len(mine) * np.outer(mine.mean(axis=0) - mean, mine.mean(axis=0) - mean)
        scatter += (len(own) - 1) * covariance / (len(clients) - 1)
    system = (1 - s) * scatter + s * np.trace(scatter) / DIM * np.eye(DIM)
    expected = np.array([np.linalg.inv(system) @ z[y == c].sum(axis=0) for c in range(CLASSES)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    head = FedCof(shrinkage=s)
    np.testing.assert_allclose(solved(head, parts_of(head, rows, y, owners)), expected, atol=1e-8)


def test_the_scatter_of_fedcof_is_unbiased_for_clients_that_draw_alike() -> None:
    rng, dim = np.random.default_rng(5), 3
    spread = np.array([0.3, 0.1, 0.02])
    head, estimates = FedCof(shrinkage=1e-9), []
    from spherefed.calibration.fedcof import _scatter

    for _ in range(400):
        x = np.array([1.0, 1.0, 1.0]) + spread * rng.standard_normal((60, dim))
        z = truncated(x)
        parts = [z[start : start + 10] for start in range(0, 60, 10)]
        sums = torch.tensor(np.array([part.sum(axis=0) for part in parts]) * 2**20).round().long()
        rows = ClassSums(torch.zeros(6, dtype=torch.int64), torch.full((6,), 10), sums)
        total = torch.tensor(z.sum(axis=0))[None]
        estimates.append(_scatter(rows, torch.tensor([60.0], dtype=torch.float64), total)[0].numpy() / 59)
    big = truncated(np.array([1.0, 1.0, 1.0]) + spread * rng.standard_normal((200_000, dim)))
    np.testing.assert_allclose(np.mean(estimates, axis=0), np.cov(big.T), atol=0.05 * np.cov(big.T).max())
    assert head.shrinkage < 1


def test_balanced_ridge_divides_the_scores_of_ffc_by_the_priors() -> None:
    rows, y, owners = problem()
    z = truncated(rows)
    parts = parts_of(BalancedFfc(), rows, y, owners)
    total = None
    for part in parts:
        total = BalancedFfc().merge(total, part, context())
    assert total is not None
    result = BalancedFfc().solve(total, context())
    ridge = float(result.summary()["ridge"])
    plain = np.linalg.solve(z.T @ z + ridge * np.eye(DIM), z.T @ np.eye(CLASSES)[y])
    priors = np.array([(y == c).mean() for c in range(CLASSES)])
    np.testing.assert_allclose(result.weight.numpy(), (plain / priors / CLASSES).T, atol=1e-8)
    recall = [np.mean((z @ w.T).argmax(axis=1)[y == 3] == 3) for w in (plain.T, result.weight.numpy())]
    assert recall[1] > recall[0]  # the rare class is found more often


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_the_order_of_clients_does_not_matter(head: Any) -> None:
    parts = parts_of(head, *problem())
    np.testing.assert_allclose(solved(head, parts), solved(head, parts[::-1]), atol=1e-12)


@pytest.mark.parametrize("head", [Ncm(), Lda(), BalancedFfc()], ids=lambda head: head.kind)
def test_one_client_with_everything_gives_the_same_bits(head: Any) -> None:
    rows, y, owners = problem()
    split = solved(head, parts_of(head, rows, y, owners))
    assert np.array_equal(split, solved(head, parts_of(head, rows, y, np.zeros_like(owners))))


def test_clients_send_only_the_classes_they_have() -> None:
    rows, y, owners = problem()
    parts = parts_of(FedCof(), rows, y, np.where(y < 2, 0, owners))
    for client, part in enumerate(parts):
        present = np.unique(y[np.where(y < 2, 0, owners) == client])
        assert part["classes"].tolist() == present.tolist()
        assert num_bytes(part) == 8 * len(present) * (DIM + 2)


@pytest.mark.parametrize("head", [Ncm(), Lda(), BalancedFfc()], ids=lambda head: head.kind)
def test_a_class_that_nobody_has_gets_a_row_of_zeros(head: Any) -> None:
    rows, y, owners = problem()
    kept = y != 2
    weight = solved(head, parts_of(head, rows[kept], y[kept], owners[kept]))
    assert not weight[2].any()
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_zero_feature_vectors_are_not_counted(head: Any) -> None:
    rows, y, owners = problem()
    more = np.concatenate([rows, np.zeros((5, DIM))]), np.append(y, [1] * 5), np.append(owners, [0] * 5)
    assert np.array_equal(solved(head, parts_of(head, *more)), solved(head, parts_of(head, rows, y, owners)))


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_no_example_at_all_is_an_error(head: Any) -> None:
    empty = head.measure(identity(), [(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64))])
    with pytest.raises(CalibrationError, match="no example was measured"):
        head.solve(head.merge(None, empty, context()), context())


def test_fedcof_needs_a_class_at_two_clients() -> None:
    rows, y, _ = problem()
    with pytest.raises(CalibrationError, match="at least two clients"):
        solved(FedCof(), parts_of(FedCof(), rows, y, y))


def spoilt(part: Tensors, name: str, change: Any) -> Tensors:
    return {**part, name: change(part[name].clone())}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sums", lambda t: t * 100, "cannot have norm"),
        ("sums", lambda t: t.double(), "int64"),
        ("sums", lambda t: t[:, 1:], "do not fit"),
        ("counts", lambda t: t * 0, "at least 1"),
        ("counts", lambda t: t * 2**30, "too large"),
        ("classes", lambda t: t + 3, "ascend within"),
        ("classes", lambda t: t * 0, "ascend within"),
        ("classes", lambda t: torch.tensor([0, 2**63 - 1, -5, -1])[: len(t)], "ascend within"),  # differences wrap
    ],
)
@pytest.mark.parametrize("head", [Ncm(), FedCof()], ids=lambda head: head.kind)
def test_impossible_class_sums_are_refused(head: Any, name: str, change: Any, message: str) -> None:
    part = parts_of(head, *problem())[0]
    with pytest.raises(CalibrationError, match=message):
        head.merge(None, spoilt(part, name, change), context())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t + 1, "add up to"),
        (lambda t: t * torch.tensor([-1, 1, 1, 1]), "add up to"),
        (lambda t: t[:2], "class_counts"),
        (lambda t: t.roll(1), "cannot have norm"),
    ],
)
def test_impossible_class_counts_are_refused(change: Any, message: str) -> None:
    part = parts_of(Lda(), *problem())[0]
    with pytest.raises(CalibrationError, match=message):
        Lda().merge(None, spoilt(part, "class_counts", change), context())


def test_class_counts_that_leave_less_than_the_scatter_of_class_means_are_refused() -> None:
    rows, labels, _ = problem()
    own = torch.from_numpy(rows[labels == 0])
    part = Lda().measure(identity(), [(own, torch.zeros(len(own), dtype=torch.int64))])
    fewest = int(np.ceil(np.linalg.norm(truncated(own.numpy()).sum(axis=0))))  # that a sum of this norm can have
    counts = torch.tensor([fewest, len(own) - fewest, 0, 0])
    for head in (Lda(), BalancedFfc()):
        with pytest.raises(CalibrationError, match="scatter of class means"):
            head.merge(None, {**part, "class_counts": counts}, context())


def test_possible_statistics_with_counts_are_accepted() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        num, dim = int(rng.integers(1, 40)), int(rng.integers(CLASSES, 30))
        rows = rng.standard_normal((num, dim)) * (rng.random((num, dim)) < rng.choice([0.3, 1.0]))
        if rng.random() < 0.3:
            rows[:] = rows[0]  # equal examples: nothing is left of V
        labels = torch.from_numpy(rng.integers(int(rng.integers(1, CLASSES + 1)), size=num))
        part = Lda().measure(identity(dim=dim), [(torch.from_numpy(rows), labels)])
        Lda().merge(None, part, Context(head=torch.zeros(CLASSES, dim), seed=0, round=0))


def test_shrinkage_is_a_fraction_above_zero() -> None:
    for make in (Lda, FedCof):
        for value in (0.0, 1.5, float("nan")):
            with pytest.raises(ConfigError, match=r"calibration\.shrinkage must be in \(0, 1\]"):
                make(shrinkage=value)
