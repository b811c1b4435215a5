"""FFC: exact statistics, and a solve that is compared with least squares on the feature rows themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spherefed.calibration.context import Context
from spherefed.calibration.ffc import (
    FEATURE_BITS,
    MAX_EXAMPLES,
    Accumulator,
    Ffc,
    Statistics,
    statistics,
    truncated_unit_rows,
)
from spherefed.calibration.solution import solve
from spherefed.errors import CalibrationError, ConfigError, SpherefedError
from spherefed.nn.classifier import Classifier, hyperspherical
from spherefed.nn.heads import FixedRandom

NUM_PARTITIONS = 200
BLOCKS = (1, 7, 64, 10**9)


@dataclass(frozen=True)
class Case:
    """Feature rows with labels, and who owns which: client 0 nothing, client 1 one row, client 2 rows of one class."""

    features: Tensor
    labels: Tensor
    num_classes: int
    parts: list[np.ndarray]

    @property
    def dim(self) -> int:
        return self.features.shape[1]


def random_case(seed: int, *, least_rows: int = 2, most_rows: int = 250) -> Case:
    rng = np.random.default_rng(seed)
    dim, num_classes, num_clients = (int(rng.integers(low, high)) for low, high in ((1, 25), (1, 9), (4, 12)))
    n = int(rng.integers(least_rows, most_rows))
    labels = rng.integers(num_classes, size=n)
    spectrum = np.exp(-rng.uniform(0, 8) * np.arange(dim) / dim)
    features = (rng.normal(size=(n, dim)) + rng.normal(size=(num_classes, dim))[labels]) * spectrum
    if rng.random() < 0.3:
        features = np.maximum(features, 0)
    features *= np.exp(rng.normal(scale=5, size=(n, 1)))
    owner = rng.integers(3, num_clients, size=n)
    owner[(labels == labels[0]) & (rng.random(n) < 0.5)] = 2
    owner[rng.integers(n)] = 1
    parts = [np.flatnonzero(owner == client) for client in range(num_clients)]
    assert len(parts[0]) == 0
    assert len(parts[1]) == 1
    return Case(torch.from_numpy(features).float(), torch.from_numpy(labels), num_classes, parts)


def blocks(features: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(labels), size):
        yield features[start : start + size], labels[start : start + size]


def identity_model(dim: int, num_classes: int) -> Classifier:
    return Classifier(nn.Identity(), FixedRandom().build(num_classes, dim, 0), num_classes=num_classes, normalize=True)


def measured(case: Case, rows: np.ndarray | slice = slice(None), block: int = 10**9) -> Statistics:
    model = identity_model(case.dim, case.num_classes)
    return statistics(model, blocks(case.features[rows], case.labels[rows], block))


def oracle_rows(features: Tensor) -> np.ndarray:
    """Whole numbers of 2⁻²⁰, row by row in numpy; zero rows left in."""
    rows = []
    for row in features.double().numpy():
        norm = np.sqrt(np.dot(row / max(abs(row).max(), 1e-300), row / max(abs(row).max(), 1e-300)))
        unit = row / max(abs(row).max(), 1e-300) / max(norm, 1e-300)
        rows.append(np.trunc(unit * 2**FEATURE_BITS))
    return np.array(rows).astype(np.int64).reshape(len(features), features.shape[1])


def oracle_statistics(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """V and U in whole numbers by integer loops over examples."""
    gram = np.zeros((case.dim, case.dim), dtype=np.int64)
    cross = np.zeros((case.dim, case.num_classes), dtype=np.int64)
    for row, label in zip(oracle_rows(case.features), case.labels.tolist(), strict=True):
        gram += np.outer(row, row)
        cross[:, label] += row
    return gram, cross


def truncated(features: Tensor) -> np.ndarray:
    return oracle_rows(features) * 2.0**-FEATURE_BITS


def one_hot(case: Case) -> np.ndarray:
    return np.eye(case.num_classes)[case.labels.numpy()]


@pytest.mark.parametrize("seed", range(0, NUM_PARTITIONS, 20))
def test_summed_statistics_equal_those_of_the_pooled_rows_to_the_bit(seed: int) -> None:
    for number in range(seed, seed + 20):
        case = random_case(number)
        sizes = [BLOCKS[client % len(BLOCKS)] for client in range(len(case.parts))]
        parts = [measured(case, rows, size) for rows, size in zip(case.parts, sizes, strict=True)]
        total = sum(parts[1:], start=parts[0])
        pooled = measured(case)
        assert total == pooled
        gram, cross = oracle_statistics(case)
        assert np.array_equal(total.packed_gram.numpy(), gram[np.triu_indices(case.dim)])
        assert np.array_equal(total.packed_cross.numpy(), cross)


def test_a_hundred_arrival_orders_give_one_sum() -> None:
    for number in range(5):
        case = random_case(number)
        parts = [measured(case, rows) for rows in case.parts]
        pooled = measured(case)
        rng = np.random.default_rng(number)
        for _ in range(100):
            order = rng.permutation(len(parts))
            assert sum((parts[i] for i in order[1:]), start=parts[order[0]]) == pooled


def test_cutting_rows_into_blocks_changes_no_bit() -> None:
    for number in range(10):
        case = random_case(number, least_rows=150)
        assert all(measured(case, block=size) == measured(case) for size in BLOCKS)


def test_sums_stay_exact_beyond_the_rows_that_one_float64_product_can_hold() -> None:
    n, dim = 20_001, 2
    features = torch.tensor([1.0, 0.001]).repeat(n, 1)
    assert oracle_rows(features[:1])[0, 0] == 2**20 - 1  # odd, and so is its square: float64 loses it beyond 2⁵³
    labels = torch.zeros(n, dtype=torch.int64)
    total = statistics(identity_model(dim, 2), [(features, labels)])
    rows = oracle_rows(features).astype(object)
    gram = [sum(int(r[i]) * int(r[j]) for r in rows) for i in range(dim) for j in range(i, dim)]
    assert total.packed_gram.tolist() == gram
    assert gram[0] > 2**54
    assert gram[0] % 2 == 1


def rows_on_the_grid(rng: np.random.Generator, dim: int) -> np.ndarray:
    """A whole-number row of norm 2²⁰ exactly: its unit vector lies on the grid, where truncation is most delicate."""
    while True:
        row = rng.integers(-isqrt(2**40 // dim), isqrt(2**40 // dim), size=dim).tolist()[: dim - 4]
        rest = 2**40 - sum(v * v for v in row)
        for _ in range(2):
            row.append(isqrt(rest))
            rest -= row[-1] ** 2
        for a in range(isqrt(rest) + 1):
            b = isqrt(rest - a * a)
            if a * a + b * b == rest:
                return np.array([*row, a, b])


@pytest.mark.parametrize("dim", [8, 33, 64])
def test_neither_blocks_nor_memory_layout_move_a_row_that_lies_on_the_grid(dim: int) -> None:
    rng = np.random.default_rng(dim)
    rows = np.stack([rows_on_the_grid(rng, dim) for _ in range(200)]) * rng.uniform(0.1, 1, size=(200, 1))
    features = torch.from_numpy(rows)
    labels = torch.zeros(200, dtype=torch.int64)
    model = identity_model(dim, 1)
    expected = statistics(model, [(features, labels)])
    column_major = features.T.contiguous().T
    assert statistics(model, [(column_major, labels)]) == expected
    for size in BLOCKS:
        assert statistics(model, blocks(features, labels, size)) == expected
        assert statistics(model, blocks(column_major, labels, size)) == expected


@pytest.mark.parametrize("seed", range(0, NUM_PARTITIONS, 20))
def test_the_head_equals_least_squares_on_the_truncated_rows(seed: int) -> None:
    compared = 0
    for number in range(seed, seed + 20):
        case = random_case(number)
        rows = truncated(case.features)
        condition = np.linalg.cond(rows) ** 2 if len(rows) >= case.dim else np.inf
        if condition > 1e8:
            continue
        solution = measured(case).solve()
        expected = np.linalg.lstsq(rows, one_hot(case), rcond=None)[0].T
        error = np.linalg.norm(solution.weight.numpy() - expected) / np.linalg.norm(expected)
        assert error <= 1e-13 * condition
        assert (solution.path, solution.rank, solution.dropped) == ("cholesky", case.dim, 0)
        assert 1 / (case.dim * condition) / 10 <= solution.rcond <= 10 / condition
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("seed", range(0, NUM_PARTITIONS, 20))
def test_scores_hardly_differ_from_least_squares_on_the_rows_before_truncation(seed: int) -> None:
    for number in range(seed, seed + 20):
        case = random_case(number, least_rows=60)
        units = nn.functional.normalize(case.features.double(), dim=1).numpy()
        kept = np.abs(units).sum(axis=1) > 0
        if np.linalg.cond(units[kept]) ** 2 > 1e8:
            continue
        expected = units @ np.linalg.lstsq(units[kept], one_hot(case)[kept], rcond=None)[0]
        scores = units @ measured(case).solve().weight.numpy().T
        assert np.abs(scores - expected).max() < 1e-3 * np.abs(expected).max()
        best = np.sort(expected, axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-9 if case.num_classes > 1 else kept
        assert np.array_equal(scores.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


@pytest.mark.parametrize("seed", range(20))
def test_fewer_rows_than_features_give_the_true_rank_and_the_minimum_norm_head(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, dim, num_classes = int(rng.integers(1, 20)), int(rng.integers(20, 48)), 4
    features = torch.from_numpy(rng.normal(size=(n, dim)))
    labels = torch.from_numpy(rng.integers(num_classes, size=n))
    case = Case(features, labels, num_classes, [])
    rows = truncated(features)
    solution = measured(case).solve()
    expected, _, rank, singular = np.linalg.lstsq(rows, one_hot(case), rcond=None)
    assert solution.path == "eigh"
    assert (solution.rank, solution.dropped) == (rank, dim - rank) == (n, dim - n)
    assert solution.rcond < dim * 2.0**-52
    condition = (singular[0] / singular[-1]) ** 2
    assert np.linalg.norm(solution.weight.numpy() - expected.T) <= 1e-12 * condition * np.linalg.norm(expected)


@pytest.mark.parametrize("weak", [1e-5, 1e-4, 1e-3])
def test_a_direction_that_is_weak_but_there_is_kept(weak: float) -> None:
    """Features that collapse give cond(V) of 10¹⁰; exact statistics still know the direction from noise."""
    rng = np.random.default_rng(7)
    features = torch.from_numpy(rng.normal(size=(500, 4)) * np.array([1, 1, 1, weak]))
    case = Case(features, torch.from_numpy(rng.integers(3, size=500)), 3, [])
    rows = truncated(features)
    solution = measured(case).solve()
    expected = np.linalg.lstsq(rows, one_hot(case), rcond=None)[0].T
    condition = np.linalg.cond(rows) ** 2
    assert condition > 0.1 / weak**2
    assert (solution.path, solution.rank, solution.dropped) == ("cholesky", 4, 0)
    error = np.linalg.norm(solution.weight.numpy() - expected)
    assert error <= 1e-13 * condition * np.linalg.norm(expected)


def test_subtracting_a_client_gives_back_what_was_there_before() -> None:
    for number in range(20):
        case = random_case(number)
        parts = [measured(case, rows) for rows in case.parts]
        a, b = sum(parts[1:3], start=parts[0]), sum(parts[4:], start=parts[3])
        assert a + b - b == a
        assert a + b != a or b.num_examples == 0


def test_equality_sees_every_field() -> None:
    a = measured(random_case(0))
    gram, cross = a.packed_gram.clone(), a.packed_cross.clone()
    gram[0] += 1
    cross[0, 0] += 1
    n, zero = a.num_examples, a.num_zero
    assert a == Statistics(n, zero, a.packed_gram, a.packed_cross)
    assert a != Statistics(n + 1, zero, a.packed_gram, a.packed_cross)
    assert a != Statistics(n, zero + 1, a.packed_gram, a.packed_cross)
    assert a != Statistics(n, zero, gram, a.packed_cross)
    assert a != Statistics(n, zero, a.packed_gram, cross)
    assert a != object()


def test_a_client_that_was_never_added_cannot_be_taken_out() -> None:
    a, b = measured(random_case(0, least_rows=100)), measured(random_case(0))
    few = measured(random_case(0), np.array([0]))
    assert b.num_examples > few.num_examples
    with pytest.raises(CalibrationError, match="never added"):
        few - a


def test_statistics_of_other_shapes_cannot_be_added() -> None:
    def empty(dim: int, num_classes: int) -> Statistics:
        return statistics(identity_model(dim, num_classes), [])

    for other in (empty(4, 5), empty(3, 6)):
        with pytest.raises(CalibrationError, match="do not fit"):
            empty(3, 5) + other


def test_an_infinite_ridge_in_the_limit_gives_the_zero_head() -> None:
    total = measured(random_case(3))
    sizes = [float(total.solve(ridge).weight.norm()) for ridge in (1.0, 1e3, 1e6, 1e9, 1e12)]
    assert all(later < earlier for earlier, later in pairwise(sizes))
    assert sizes[-1] < 1e-9
    assert sizes[-1] * 1e12 == pytest.approx(float(total.cross().norm()))


def test_doubling_the_data_and_the_ridge_changes_nothing() -> None:
    for number in range(20):
        total = measured(random_case(number, least_rows=100))
        for ridge in (0.5, 7.0):
            once, twice = total.solve(ridge), (total + total).solve(2 * ridge)
            assert torch.allclose(once.weight, twice.weight, rtol=1e-12, atol=1e-12)


def test_the_ridge_solution_equals_least_squares_on_rows_with_the_ridge_appended() -> None:
    for number in range(20):
        case = random_case(number)
        for ridge in (1e-3, 1.0):
            rows = np.vstack([truncated(case.features), ridge**0.5 * np.eye(case.dim)])
            targets = np.vstack([one_hot(case), np.zeros((case.dim, case.num_classes))])
            expected = np.linalg.lstsq(rows, targets, rcond=None)[0].T
            solution = measured(case).solve(ridge)
            assert solution.ridge == ridge
            bound = 1e-13 * np.linalg.cond(rows) ** 2 * np.linalg.norm(expected)
            assert np.linalg.norm(solution.weight.numpy() - expected) <= bound


def test_rotating_the_features_changes_no_prediction() -> None:
    rng = np.random.default_rng(0)
    case = Case(torch.from_numpy(rng.normal(size=(300, 10))), torch.from_numpy(rng.integers(4, size=300)), 4, [])
    rotation = torch.linalg.qr(torch.from_numpy(rng.normal(size=(10, 10))))[0]
    turned = Case(case.features @ rotation, case.labels, 4, [])
    before = case.features @ measured(case).solve().weight.T
    after = turned.features @ measured(turned).solve().weight.T
    assert torch.allclose(before, after, atol=1e-4 * float(before.abs().max()))
    assert torch.equal(before.argmax(dim=1), after.argmax(dim=1))


def test_the_length_of_a_feature_vector_does_not_count() -> None:
    case = random_case(4)
    powers = 2.0 ** torch.randint(-60, 60, (len(case.labels), 1), generator=torch.Generator().manual_seed(0))
    assert measured(Case(case.features.double() * powers, case.labels, case.num_classes, [])) == measured(case)


def test_very_long_and_very_short_rows_are_still_measured() -> None:
    labels = torch.tensor([0, 1])
    rows = torch.tensor([[3.0, 4.0], [-4.0, 3.0]], dtype=torch.float64)
    model = identity_model(2, 2)
    expected = statistics(model, [(rows, labels)])
    for power in (-900, 900):
        assert statistics(model, [(rows * 2.0**power, labels)]) == expected


def test_duplicated_features_take_the_path_over_eigenvectors_and_say_so() -> None:
    rng = np.random.default_rng(5)
    narrow = torch.from_numpy(rng.normal(size=(100, 6)))
    labels = torch.from_numpy(rng.integers(3, size=100))
    plain = measured(Case(narrow, labels, 3, [])).solve()
    doubled = measured(Case(torch.cat([narrow, narrow], dim=1), labels, 3, [])).solve()
    assert (plain.path, plain.rank, plain.dropped) == ("cholesky", 6, 0)
    assert (doubled.path, doubled.rank, doubled.dropped) == ("eigh", 6, 6)
    assert torch.allclose(doubled.weight[:, :6], doubled.weight[:, 6:], atol=1e-10)  # minimum norm shares alike
    assert doubled.summary()["path"] == "eigh"
    assert doubled.summary().keys() == {"path", "rcond", "rank", "dropped", "ridge"}


def test_dead_features_are_dropped_and_the_others_solved_as_if_they_were_alone() -> None:
    rng = np.random.default_rng(6)
    alive = torch.from_numpy(np.maximum(rng.normal(size=(200, 8)), 0) + 0.01)
    features = torch.zeros(200, 12, dtype=torch.float64)
    places = torch.tensor([0, 2, 3, 5, 6, 8, 9, 11])
    features[:, places] = alive
    labels = torch.from_numpy(rng.integers(4, size=200))
    full, alone = measured(Case(features, labels, 4, [])).solve(), measured(Case(alive, labels, 4, [])).solve()
    assert (full.path, full.rank, full.dropped, full.rcond) == ("eigh", 8, 4, 0.0)
    assert alone.path == "cholesky"
    assert torch.allclose(full.weight[:, places], alone.weight, rtol=1e-9, atol=1e-10)
    dead = torch.tensor([1, 4, 7, 10])
    assert float(full.weight[:, dead].abs().max()) <= 1e-12 * float(full.weight.abs().max())


def test_zero_rows_are_left_out_and_counted() -> None:
    case = random_case(8, least_rows=50)
    zeros = torch.zeros(5, case.dim)
    mixed = torch.cat([zeros[:2], case.features, zeros[:3]])
    labels = torch.cat([torch.zeros(2, dtype=torch.int64), case.labels, torch.zeros(3, dtype=torch.int64)])
    plain = measured(case)
    total = measured(Case(mixed, labels, case.num_classes, []))
    assert total.num_zero == plain.num_zero + 5
    assert total.num_examples == plain.num_examples
    assert torch.equal(total.packed_gram, plain.packed_gram)
    assert torch.equal(total.packed_cross, plain.packed_cross)


def test_nothing_but_zero_rows_cannot_be_solved() -> None:
    total = statistics(identity_model(3, 2), [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))])
    assert (total.num_examples, total.num_zero) == (0, 4)
    with pytest.raises(CalibrationError, match="no example"):
        total.solve()


def test_as_many_examples_as_would_overflow_are_refused() -> None:
    def pretended(num_examples: int) -> Statistics:
        gram = torch.tensor([num_examples * 2**40])
        return Statistics(num_examples, 0, gram, torch.tensor([[num_examples * 2**20]]))

    most = pretended(MAX_EXAMPLES - 2) + pretended(1)
    assert most.packed_gram.item() == (MAX_EXAMPLES - 1) * 2**40 > 0
    assert Statistics.from_tensors(most.tensors()) == most
    with pytest.raises(CalibrationError, match="overflow"):
        most + pretended(1)
    forged = dict(most.tensors()) | {"counts": torch.tensor([MAX_EXAMPLES, 0])}
    with pytest.raises(CalibrationError, match="overflow"):
        Statistics.from_tensors(forged)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    features = torch.ones(6, 3)
    features[4, 1] = bad
    with pytest.raises(CalibrationError, match="example 4"):
        statistics(identity_model(3, 2), [(features, torch.zeros(6, dtype=torch.int64))])


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, 1, 2]),
        torch.tensor([0, -1, 1]),
        torch.tensor([0, 1]),
        torch.tensor([0.0, 1.0, 0.0]),
        torch.tensor([[0], [1], [0]]),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: Tensor) -> None:
    with pytest.raises(CalibrationError, match="label"):
        statistics(identity_model(3, 2), [(torch.ones(3, 3), labels)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_whole_numbers_of_any_width(dtype: torch.dtype) -> None:
    features, labels = torch.eye(3), torch.tensor([0, 1, 1])
    model = identity_model(3, 2)
    assert statistics(model, [(features, labels.to(dtype))]) == statistics(model, [(features, labels)])


def test_what_travels_comes_back_equal() -> None:
    for number in range(20):
        total = measured(random_case(number))
        assert Statistics.from_tensors(total.tensors()) == total


def test_rows_near_a_corner_keep_a_trace_that_is_accepted() -> None:
    for dim in (1, 2, 64, 1000):
        features = torch.ones(50, dim)  # truncation takes most from equal entries
        total = statistics(identity_model(dim, 1), [(features, torch.zeros(50, dtype=torch.int64))])
        assert Statistics.from_tensors(total.tensors()) == total


def forgeries() -> dict[str, dict[str, Tensor]]:
    rows = torch.tensor([[1.0, 2.0, 2.0], [3.0, -4.0, 0.0]])
    true = dict(statistics(identity_model(3, 2), [(rows, torch.tensor([0, 1]))]).tensors())
    gram, cross = true["gram"], true["cross"]

    def altered(tensor: Tensor, position: int, value: int) -> Tensor:
        copy = tensor.clone()
        copy.view(-1)[position] = value
        return copy

    return {
        "a trace too large": true | {"gram": 2 * gram},
        "a trace too small": true | {"gram": gram // 2},
        "a negative diagonal": true | {"gram": altered(altered(gram, 0, -(2**40)), 3, 3 * 2**40)},
        "an off-diagonal entry beyond n": true | {"gram": altered(gram, 1, 2**62)},
        "an off-diagonal entry below -n": true | {"gram": altered(gram, 1, -(2**63))},
        "a class sum beyond n": true | {"cross": altered(cross, 0, 2**40)},
        "a class sum below -n": true | {"cross": altered(cross, 0, -(2**63))},
        "more examples than the trace": true | {"counts": torch.tensor([3, 0])},
        "fewer examples than the trace": true | {"counts": torch.tensor([1, 0])},
        "a negative count": true | {"counts": torch.tensor([-2, 0])},
        "a negative count of zero rows": true | {"counts": torch.tensor([2, -1])},
        "three counts": true | {"counts": torch.tensor([2, 0, 0])},
        "float sums": true | {"gram": gram.double()},
        "narrow sums": true | {"cross": cross.to(torch.int32)},
        "a gram too short": true | {"gram": gram[:-1]},
        "a square gram": true | {"gram": torch.zeros(3, 3, dtype=torch.int64)},
        "a flat cross": {"counts": torch.tensor([0, 0]), "gram": gram[:0], "cross": cross[:, 0]},
        "a missing part": {"counts": true["counts"], "gram": gram},
        "an extra part": true | {"more": gram},
    }


@pytest.mark.parametrize("name", forgeries())
def test_forged_statistics_are_refused(name: str) -> None:
    with pytest.raises(CalibrationError):
        Statistics.from_tensors(forgeries()[name])


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf")])
def test_a_ridge_that_is_no_ridge_is_refused(ridge: float) -> None:
    with pytest.raises(ConfigError):
        Ffc(ridge=ridge)
    with pytest.raises(CalibrationError):
        measured(random_case(0)).solve(ridge)


def test_a_matrix_that_is_no_gram_matrix_is_refused() -> None:
    for gram in (torch.zeros(2, 2, dtype=torch.float64), -torch.eye(2, dtype=torch.float64)):
        with pytest.raises(CalibrationError):
            solve(gram, torch.ones(2, 1, dtype=torch.float64), 0.0)


def test_merging_on_the_server_equals_measuring_the_pooled_rows() -> None:
    case, ffc = random_case(9, least_rows=100), Ffc(ridge=0.5)
    model = identity_model(case.dim, case.num_classes)
    context = Context(head=model.head.weight, seed=0, round=0)
    total = None
    for rows in case.parts:
        part = ffc.measure(model, blocks(case.features[rows], case.labels[rows], 10))
        total = ffc.merge(total, part, context)
    assert total is not None
    assert torch.equal(ffc.solve(total, context).weight, measured(case).solve(0.5).weight)


def test_measuring_uses_eval_mode_and_puts_every_module_back_into_its_own() -> None:
    norm, frozen = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    encoder = nn.Sequential(norm, nn.Dropout(0.5), frozen)
    model = hyperspherical(encoder, 3, dim=4).train()
    frozen.eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x, y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    assert statistics(model, [(x, y)]) == statistics(model, [(x, y)])  # dropout would differ
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert (model.training, norm.training, frozen.training) == (True, True, False)


def test_the_mode_is_put_back_even_if_measuring_fails() -> None:
    model = hyperspherical(nn.Identity(), 3, dim=4).train()
    with pytest.raises(SpherefedError):
        statistics(model, [(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))])
    assert model.training


def test_an_empty_iterable_gives_the_neutral_element_if_the_dimension_is_known() -> None:
    case = random_case(2)
    zero = statistics(identity_model(case.dim, case.num_classes), [])
    assert zero + measured(case) == measured(case)
    with pytest.raises(CalibrationError, match="dimension"):
        statistics(hyperspherical(nn.Identity(), 3), [])


def test_truncation_never_lengthens_a_vector() -> None:
    features = torch.randn(2000, 17, generator=torch.Generator().manual_seed(1))
    rows, kept = truncated_unit_rows(features)
    assert bool(kept.all())
    assert int((rows.to(torch.int64) ** 2).sum(dim=1).max()) <= 2**40
    units = nn.functional.normalize(features.double(), dim=1)
    assert float((rows * 2.0**-FEATURE_BITS - units).abs().max()) < 2.0**-FEATURE_BITS


def test_an_accumulator_can_be_read_in_between() -> None:
    case = random_case(12, least_rows=120)
    accumulator = Accumulator(case.dim, case.num_classes, torch.device("cpu"))
    accumulator.add(case.features[:50], case.labels[:50])
    assert accumulator.total() == measured(case, slice(0, 50))
    accumulator.add(case.features[50:], case.labels[50:])
    assert accumulator.total() == measured(case)


@pytest.mark.soak
def test_a_wide_tall_problem_agrees_with_least_squares() -> None:
    rng = np.random.default_rng(0)
    case = Case(
        torch.from_numpy(rng.normal(size=(40_000, 512))), torch.from_numpy(rng.integers(100, size=40_000)), 100, []
    )
    rows = truncated(case.features)
    expected = np.linalg.lstsq(rows, one_hot(case), rcond=None)[0].T
    solution = measured(case, block=500).solve()
    assert np.linalg.norm(solution.weight.numpy() - expected) <= 1e-12 * np.linalg.norm(expected)


def test_taking_out_a_client_that_was_never_added_is_refused() -> None:
    rng = np.random.default_rng(0)
    model = identity_model(8, 3)
    a, b = (
        statistics(model, [(torch.from_numpy(rng.standard_normal((n, 8))), torch.from_numpy(rng.integers(3, size=n)))])
        for n in (5, 6)
    )
    with pytest.raises(CalibrationError, match="subtracted"):
        (b - a).solve()
    assert (a + b - a).solve().rank == 6


def test_zero_is_the_empty_sum() -> None:
    one = statistics(hyperspherical(nn.Identity(), 3, dim=8), [(torch.randn(5, 8), torch.arange(5) % 3)])
    assert one + 0 == 0 + one == one - 0 == sum([one]) == one
    for wrong in (1, 0.0, False, None, "0"):
        with pytest.raises(TypeError):
            one + wrong  # type: ignore[operator]


def test_statistics_and_solutions_show_sizes_and_not_tensors() -> None:
    one = statistics(
        hyperspherical(nn.Identity(), 3, dim=8),
        [(torch.cat([torch.randn(20, 8), torch.zeros(1, 8)]), torch.arange(21) % 3)],
    )
    assert repr(one) == "Statistics(20 examples, 1 zero vectors, 8 features, 3 classes)"
    assert repr(one.solve(0.5)).startswith("Solution(3 classes × 8 features by cholesky, rank 8, rcond ")
    assert repr(one.solve(0.5)).endswith(", ridge 0.5)")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_arrays_give_the_statistics_of_the_same_tensors(kind: type) -> None:
    torch.manual_seed(0)
    model = hyperspherical(nn.Linear(3, 4), num_classes=2, dim=4)
    inputs, labels = torch.randn(9, 3), torch.arange(9) % 2
    found = statistics(model, [(inputs.numpy().astype(kind), labels.numpy())])  # type: ignore[list-item]
    assert found == statistics(model, [(inputs, labels)])


@pytest.mark.parametrize("encoder", [nn.Linear(3, 4), nn.BatchNorm1d(3, affine=False), nn.Identity()])
def test_float64_tensors_give_the_statistics_of_the_same_numbers_in_float32(encoder: nn.Module) -> None:
    inputs, labels, model = torch.randn(9, 3), torch.arange(9) % 2, hyperspherical(encoder, num_classes=2)
    assert statistics(model, [(inputs.double(), labels)]) == statistics(model, [(inputs, labels)])


def test_float64_features_of_an_encoder_without_weights_are_not_rounded_to_float32() -> None:
    features = torch.randn(500, 3, dtype=torch.float64)
    found = statistics(hyperspherical(nn.Identity(), 2), [(features, torch.zeros(500, dtype=torch.int64))])
    assert found.packed_cross[:, 0].tolist() == oracle_rows(features).sum(axis=0).tolist()
    assert found.packed_cross[:, 0].tolist() != oracle_rows(features.float()).sum(axis=0).tolist()


def test_a_ridge_that_is_no_number_is_refused() -> None:
    part = statistics(hyperspherical(nn.Linear(3, 4), num_classes=2, dim=4), [(torch.ones(2, 3), torch.arange(2))])
    with pytest.raises(ConfigError, match="ridge must be a number, got '1'"):
        part.solve("1")  # type: ignore[arg-type]
    assert torch.equal(part.solve(np.float32(0.5)).weight, part.solve(0.5).weight)  # type: ignore[arg-type]
