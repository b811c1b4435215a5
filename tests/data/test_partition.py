"""Partitions: disjoint, complete, seeded, always finished."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spherefed.data.arrays import digits
from spherefed.data.heterogeneity import heterogeneity
from spherefed.data.partition import (
    Dirichlet,
    Iid,
    Partitioner,
    QuantitySkew,
    Shards,
    Stored,
    partition,
)
from spherefed.errors import ConfigError
from spherefed.rng import Purpose, stream
from spherefed.schema import from_plain, to_plain
from support.small import random_labels

alphas = st.floats(min_value=1e-320, max_value=1e300, allow_nan=False)


clients = st.integers(1, 30)


partitioners = st.one_of(
    st.builds(Iid, clients=clients),
    st.builds(Dirichlet, alpha=alphas, clients=clients, min_size=st.integers(0, 2), balanced=st.booleans()),
    st.builds(Shards, shards_per_client=st.integers(1, 5), clients=clients),
    st.builds(QuantitySkew, alpha=alphas, clients=clients, min_size=st.integers(0, 2)),
)


@settings(max_examples=150, deadline=None)
@given(partitioner=partitioners, num=st.integers(60, 200), num_classes=st.integers(1, 12), seed=st.integers(0, 99))
def test_partitions_are_disjoint_complete_and_seeded(partitioner, num, num_classes, seed):
    labels = random_labels(num, num_classes, seed)
    first = partition(partitioner, labels, num_classes, np.random.default_rng(seed))
    again = partition(partitioner, labels, num_classes, np.random.default_rng(seed))
    assert first.digest() == again.digest()
    assert len(first.parts) == partitioner.clients
    assert sorted(np.concatenate(first.parts).tolist()) == list(range(num))
    assert all((np.diff(part) > 0).all() for part in first.parts)
    assert first.label_counts.sum() == num
    assert min(first.sizes) >= getattr(partitioner, "min_size", 0)


@settings(max_examples=20, deadline=None)
@given(num=st.integers(0, 5), partitioner=st.sampled_from([Iid(), Dirichlet(), Shards(), QuantitySkew()]))
def test_fewer_examples_than_clients_still_end(num, partitioner):
    assert partition(partitioner, random_labels(num, 3), 3, np.random.default_rng(0)).sizes.sum() == num


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_large_alpha_approaches_iid_and_small_alpha_separates(seed):
    labels = random_labels(4000, 10, seed)

    def figures(partitioner: Partitioner):
        return heterogeneity(partition(partitioner, labels, 10, np.random.default_rng(seed)))

    iid, wide, narrow = figures(Iid()), figures(Dirichlet(alpha=1e6)), figures(Dirichlet(alpha=0.05))
    assert wide.mean_js_distance <= iid.mean_js_distance + 0.01
    assert narrow.mean_js_distance > 0.6
    assert narrow.mean_effective_classes < wide.mean_effective_classes
    equal, skewed = figures(QuantitySkew(alpha=1e8)), figures(QuantitySkew(alpha=0.1))
    assert equal.max_size - equal.min_size <= 2
    assert skewed.max_size > 2 * 400


@pytest.mark.parametrize("seed", range(3))
def test_balanced_clients_that_have_their_share_get_no_further_class(seed: int) -> None:
    labels = np.repeat(np.arange(100), 50)
    draws = [Dirichlet(alpha=0.1, balanced=flag) for flag in (True, False)]
    balanced, plain = (partition(draw, labels, 100, np.random.default_rng(seed)) for draw in draws)
    for client in range(10):
        before = 0
        for count in balanced.label_counts[client]:
            assert count == 0 or before < 500
            before += int(count)
    assert np.ptp(balanced.sizes) < np.ptp(plain.sizes)


def test_shards_give_few_classes_and_equal_sizes():
    labels = np.repeat(np.arange(10), 100)
    outcome = partition(Shards(shards_per_client=2, clients=10), labels, 10, np.random.default_rng(0))
    assert set(outcome.sizes) == {100}
    assert ((outcome.label_counts > 0).sum(axis=1) <= 2).all()


def test_quantity_skew_keeps_the_mix_of_labels():
    labels = np.repeat(np.arange(4), 5000)
    outcome = partition(QuantitySkew(alpha=1.0, clients=5), labels, 4, np.random.default_rng(3))
    large = outcome.label_counts[outcome.sizes > 1000]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.25).max() < 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda: Shards(shards_per_client=0),
        lambda: Shards(clients=0),
        lambda: QuantitySkew(alpha=0.0),
        lambda: QuantitySkew(alpha=float("inf")),
        lambda: QuantitySkew(min_size=-1),
        lambda: partition(QuantitySkew(min_size=50), random_labels(100, 3), 3, np.random.default_rng(0)),
    ],
)
def test_impossible_partitions_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    "value", [Iid(), Dirichlet(), Shards(clients=3), QuantitySkew(alpha=2.0), Stored(path="p.json")]
)
def test_partitioners_go_through_plain_data(value):
    assert from_plain(Partitioner, to_plain(value)) == value


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 0.01, 0.1, 100.0])
@pytest.mark.parametrize("min_size", [0, 10])
def test_a_hundred_clients_share_the_digits_whatever_the_skew(alpha: float, min_size: int) -> None:
    labels = digits().train.labels.numpy()
    split = partition(Dirichlet(alpha=alpha, clients=100, min_size=min_size), labels, 10, stream(0, Purpose.PARTITION))
    assert sorted(np.concatenate(split.parts).tolist()) == list(range(len(labels)))
    assert split.sizes.min() >= min_size
    for client, part in enumerate(split.parts):
        assert [int((labels[part] == c).sum()) for c in range(10)] == split.label_counts[client].tolist()


def test_a_tiny_alpha_gives_each_class_to_one_client_drawn_uniformly() -> None:
    labels = np.repeat(np.arange(10), 5)
    owners = np.zeros(8, dtype=int)
    for seed in range(200):
        counts = partition(Dirichlet(alpha=1e-12, clients=8), labels, 10, np.random.default_rng(seed)).label_counts
        assert (np.count_nonzero(counts, axis=0) == 1).all()
        owners += np.count_nonzero(counts, axis=1)
    # 250 expected each, standard deviation 14.8: six of them either way.
    assert np.abs(owners - 250).max() < 89


@settings(max_examples=30)
@given(size=st.integers(0, 300), clients=st.integers(1, 40))
def test_iid_parts_differ_by_one_example_at_most(size: int, clients: int) -> None:
    sizes = partition(Iid(clients=clients), np.zeros(size, dtype=np.int64), 1, stream(0, Purpose.PARTITION)).sizes
    assert sizes.max() - sizes.min() <= 1
