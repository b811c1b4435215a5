"""Batches and splits: every example where it belongs, in an order that its stream alone decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from small import CPU
from spherefed.data.arrays import digits
from spherefed.data.examples import Examples
from spherefed.data.partition import Dirichlet, Iid, hold_out, partition
from spherefed.rng import Purpose, stream, torch_stream


def numbered(size: int) -> Examples:
    """Examples whose input and label both are their own number."""
    numbers = torch.arange(size)
    return Examples(numbers.float().view(-1, 1, 1, 1), numbers)


def labels_of(batches: "list[tuple[Tensor, Tensor]]") -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


@given(size=st.integers(0, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 9), views=st.integers(0, 2))
def test_every_example_comes_once_per_epoch_with_its_own_label(
    size: int, batch_size: int, seed: int, views: int
) -> None:
    examples = numbered(3 * size)
    expected = list(range(3 * size))
    for _ in range(views):  # a view of a view
        chosen = np.random.default_rng(seed).permutation(len(examples))[: max(size, 0)]
        expected = [expected[i] for i in chosen]
        examples = examples.take(chosen)
    assert len(examples) == len(expected)
    assert examples.all_labels().tolist() == expected
    in_order = list(examples.in_order(batch_size, device=CPU))
    shuffled = list(examples.epoch(batch_size, stream(seed, Purpose.BATCHES), device=CPU))
    assert labels_of(in_order) == expected
    assert sorted(labels_of(shuffled)) == sorted(expected)
    for batches in (in_order, shuffled):
        assert all(x.flatten().tolist() == y.tolist() for x, y in batches)
        sizes = [len(y) for _, y in batches]
        assert all(s == batch_size for s in sizes[:-1])
        assert len(sizes) == -(-len(expected) // batch_size)


def test_the_order_depends_on_the_stream_and_on_nothing_else() -> None:
    def order(*name: int) -> list[int]:
        return labels_of(list(numbered(50).epoch(8, stream(0, Purpose.BATCHES, *name), device=CPU)))

    first = order(3, 7)
    np.random.seed(1)
    torch.manual_seed(1)
    assert order(3, 7) == first
    assert len({tuple(order(*name)) for name in ((3, 7), (7, 3), (3, 8), (4, 7))}) == 4


def test_epochs_from_one_stream_come_in_different_orders() -> None:
    rng = stream(0, Purpose.BATCHES, 0, 0)
    epochs = [tuple(labels_of(list(numbered(50).epoch(8, rng, device=CPU)))) for _ in range(3)]
    assert len(set(epochs)) == 3


def test_the_order_does_not_depend_on_the_batch_size() -> None:
    orders = [labels_of(list(numbered(50).epoch(b, stream(0, Purpose.BATCHES), device=CPU))) for b in (1, 7, 50)]
    assert orders[0] == orders[1] == orders[2]


def test_augmentation_touches_training_batches_only() -> None:
    def negate(inputs: Tensor, rng: np.random.Generator) -> Tensor:
        return -inputs

    examples = numbered(10)
    for x, y in examples.epoch(4, stream(0, Purpose.BATCHES), augment=negate, device=CPU):
        assert x.flatten().tolist() == (-y).tolist()
    assert torch.equal(examples.inputs.flatten(), torch.arange(10.0))


def test_streams_of_different_names_share_no_number() -> None:
    names = [(seed, purpose, key) for seed in (0, 1) for purpose in Purpose for key in (0, 1)]
    firsts = {int(stream(seed, purpose, key).integers(2**63)) for seed, purpose, key in names}
    assert len(firsts) == len(names)


def test_torchs_generator_follows_the_named_stream_and_is_put_back() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    draws = []
    for name in ((0, 1), (0, 1), (1, 0)):
        with torch_stream(0, Purpose.LAYERS, *name):
            draws.append(torch.rand(4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@given(size=st.integers(0, 200), fraction=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 9))
def test_holding_out_cuts_in_two_and_never_takes_all(size: int, fraction: float, seed: int) -> None:
    kept, held = hold_out(size, fraction, np.random.default_rng(seed))
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(size))
    assert len(held) <= size * fraction < len(held) + 1
    assert size == 0 or len(kept) > 0


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


def test_the_digits_are_split_once_and_for_all() -> None:
    from sklearn.datasets import load_digits

    first, again = digits(), digits()
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.labels, again.test.labels)
    assert (len(first.train), len(first.test)) == (1438, 359)
    assert first.input_shape == (1, 8, 8)
    assert first.num_classes == 10
    together = torch.cat([first.train.inputs, first.test.inputs]).flatten(1)
    raw = torch.from_numpy(load_digits().data / 16).float()
    assert torch.equal(together.sort(dim=0).values, raw.sort(dim=0).values)  # the same pixels, none lost or doubled
    assert set(first.test.labels.tolist()) == set(range(10))
