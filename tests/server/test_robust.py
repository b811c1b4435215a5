"""Robust aggregation, against loops over clients and coordinates."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.errors import ConfigError, FederationError
from spherefed.experiment import experiment_from_json, experiment_to_json, with_settings
from spherefed.messages import TrainReply
from spherefed.server.aggregation import CohortAggregator
from spherefed.server.algorithms import Algorithm, fedavg, scaffold
from spherefed.server.federation import federate
from spherefed.server.robust import (
    CentredClipping,
    CoordinateMedian,
    Krum,
    Mean,
    MultiKrum,
    NormClipping,
    RobustRule,
    TrimmedMean,
)
from support.small import aggregate, assembled, in_process, tiny

RULES: list[RobustRule] = [
    CoordinateMedian(),
    TrimmedMean(trim=0.2),
    Krum(hostile=2),
    MultiKrum(hostile=2),
    NormClipping(),
    NormClipping(max_norm=0.5),
    CentredClipping(),
    CentredClipping(radius=0.3, iterations=5),
]


def reply(client: int, delta: np.ndarray, num_examples: int = 5) -> TrainReply:
    tensors = {"b": torch.from_numpy(delta[:2]), "a": torch.from_numpy(delta[2:].reshape(2, -1))}
    return TrainReply(client, 0, num_examples, 1.0, float(client), tensors, {"v": torch.from_numpy(delta[:3] + 1)})


def aggregated(rule: RobustRule, replies: Sequence[TrainReply]) -> Any:
    aggregator = CohortAggregator(rule)
    for each in replies:
        aggregator.add(each)
    result = aggregator.result()
    assert result is not None
    return result


def vector(result: Any) -> np.ndarray:
    return np.concatenate([result.delta["b"].numpy(), result.delta["a"].numpy().ravel()])


def middle(rows: np.ndarray) -> np.ndarray:
    return np.array([median(rows[:, d].tolist()) for d in range(rows.shape[1])])


def scaled(row: np.ndarray, limit: float) -> np.ndarray:
    length = sum(x * x for x in row) ** 0.5
    return row if length <= limit else row * limit / length


def krum_order(rows: np.ndarray, hostile: int) -> list[int]:
    scores = []
    for i in range(len(rows)):
        others = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(len(rows)) if j != i)
        scores.append(sum(others[: len(rows) - hostile - 2]))
    return sorted(range(len(rows)), key=lambda i: scores[i])


def by_loop(rule: RobustRule, rows: np.ndarray) -> np.ndarray:
    def trimmed() -> np.ndarray:
        num = int(0.2 * len(rows))
        return np.array([np.mean(sorted(rows[:, d])[num : len(rows) - num]) for d in range(rows.shape[1])])

    def clipped() -> np.ndarray:
        assert isinstance(rule, NormClipping)
        limit = rule.max_norm or median(float(np.linalg.norm(row)) for row in rows)
        return np.mean([scaled(row, limit) for row in rows], axis=0)

    def centred() -> np.ndarray:
        assert isinstance(rule, CentredClipping)
        centre = middle(rows)
        for _ in range(rule.iterations):
            limit = rule.radius or median(float(np.linalg.norm(row - centre)) for row in rows)
            centre = centre + np.mean([scaled(row - centre, limit) for row in rows], axis=0)
        return centre

    ways: dict[type, Callable[[], np.ndarray]] = {
        CoordinateMedian: lambda: middle(rows),
        TrimmedMean: trimmed,
        Krum: lambda: rows[krum_order(rows, 2)[0]],
        MultiKrum: lambda: rows[sorted(krum_order(rows, 2)[: len(rows) - 2])].mean(axis=0),
        NormClipping: clipped,
        CentredClipping: centred,
    }
    return ways[type(rule)]()


@pytest.mark.parametrize("num_clients", [7, 8, 10])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_equal_loops_over_clients_and_coordinates(rule: RobustRule, num_clients: int) -> None:
    rng = np.random.default_rng(num_clients)
    rows = rng.normal(size=(num_clients, 8))
    rows[1] *= 50
    result = aggregated(rule, [reply(client, row) for client, row in enumerate(rows)])
    np.testing.assert_allclose(vector(result), by_loop(rule, rows), rtol=1e-9, atol=1e-12)
    assert list(result.delta) == ["b", "a"]
    assert result.delta["a"].shape == (2, 3)
    assert result.num_examples == 5 * num_clients
    assert result.loss == median(range(num_clients))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_two_hostile_clients_in_ten_cannot_move_the_result_far(rule: RobustRule) -> None:
    """However large their update is and however many examples they claim, the result stays among the honest updates."""
    rng = np.random.default_rng(0)
    honest = 1 + 0.1 * rng.normal(size=(8, 8))
    widest = max(float(np.linalg.norm(a - b)) for a, b in combinations(honest, 2))
    for size in (1e2, 1e6):
        hostile = [reply(8, np.full(8, -size), 10**6), reply(9, np.full(8, -size), 10**6)]
        result = vector(aggregated(rule, [*(reply(k, row) for k, row in enumerate(honest)), *hostile]))
        reach = 2 * widest if not isinstance(rule, NormClipping) else 0.6 * float(np.linalg.norm(honest.mean(0)))
        if rule != NormClipping(max_norm=0.5):
            assert float(np.linalg.norm(result - honest.mean(axis=0))) <= reach
        assert (result > 0).all()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_order_of_clients_is_irrelevant_and_equal_updates_stay(rule: RobustRule) -> None:
    rows = np.random.default_rng(1).normal(size=(9, 8))
    replies = [reply(client, row) for client, row in enumerate(rows)]
    np.testing.assert_allclose(vector(aggregated(rule, replies)), vector(aggregated(rule, replies[::-1])), atol=1e-12)
    equal = [reply(client, 0.01 * rows[0]) for client in range(7)]
    np.testing.assert_allclose(vector(aggregated(rule, equal)), 0.01 * rows[0], atol=1e-12)


def test_clients_without_examples_do_not_count() -> None:
    rows = np.random.default_rng(2).normal(size=(3, 8))
    replies = [reply(0, rows[0]), reply(1, rows[1], num_examples=0), reply(2, rows[2])]
    np.testing.assert_allclose(vector(aggregated(CoordinateMedian(), replies)), (rows[0] + rows[2]) / 2)
    assert CohortAggregator(CoordinateMedian()).result() is None


def test_without_trimming_and_with_equal_weights_the_trimmed_mean_is_the_mean() -> None:
    rows = np.random.default_rng(3).normal(size=(5, 8))
    replies = [reply(client, row) for client, row in enumerate(rows)]
    mean = aggregate(replies, normalize_steps=False, weigh="clients")
    np.testing.assert_allclose(vector(aggregated(TrimmedMean(trim=0.0), replies)), vector(mean), rtol=1e-12)


@pytest.mark.parametrize("rule", [Krum(hostile=1), MultiKrum(hostile=1)])
def test_krum_needs_enough_replies(rule: RobustRule) -> None:
    replies = [reply(client, np.full(8, float(client))) for client in range(4)]
    with pytest.raises(FederationError, match="at least 5 replies, got 4"):
        aggregated(rule, replies)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_robust_rules_refuse_fednova_and_weights_by_examples(rule: RobustRule) -> None:
    with pytest.raises(ConfigError, match="FedNova"):
        Algorithm(aggregation=rule, normalize_steps=True, weigh="clients")
    with pytest.raises(ConfigError, match=r"set algorithm\.weigh = 'clients'"):
        Algorithm(aggregation=rule)
    assert Algorithm().aggregation == Mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrimmedMean(trim=0.5),
        lambda: Krum(hostile=-1),
        lambda: NormClipping(max_norm=0.0),
        lambda: CentredClipping(iterations=0),
    ],
)
def test_values_that_make_no_sense_are_refused(make: Callable[[], RobustRule]) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.aggregation"):
        make()


@pytest.mark.parametrize("base", [fedavg(), scaffold()], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("rule", [CoordinateMedian(), Krum(hostile=0), CentredClipping()], ids=repr)
def test_a_federation_learns_with_a_robust_rule(rule: RobustRule, base: Algorithm) -> None:
    algorithm = replace(base, aggregation=rule, weigh="clients")
    assembly = assembled(calibration=None, algorithm=algorithm, rounds=6)
    losses = [done.loss for done in federate(in_process(assembly), assembly.initial(), assembly.plan())]
    assert losses[-1] < 0.7 * losses[0]


def test_an_experiment_with_a_robust_rule_is_read_back() -> None:
    experiment = with_settings(tiny(), ["algorithm.weigh=clients", "algorithm.aggregation={kind='krum', hostile=1}"])
    assert experiment.algorithm.aggregation == Krum(hostile=1)
    assert experiment_from_json(experiment_to_json(experiment)) == experiment
    assert experiment.digest() != tiny().digest()
