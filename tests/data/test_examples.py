"""Batches: every example once, in an order that its stream alone decides; preparation of inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spherefed.data.examples import Examples, Preparation, hold_out, with_held_out
from spherefed.errors import ConfigError
from spherefed.rng import Purpose, stream
from support.small import CPU


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


@pytest.mark.parametrize("view", [False, True])
def test_the_inputs_of_a_batch_may_be_changed_in_place(view: bool) -> None:
    examples = numbered(10).take(torch.arange(10)) if view else numbered(10)
    batches = [examples.in_order(4, device=CPU), examples.epoch(4, stream(0, Purpose.BATCHES), device=CPU)]
    for x, _ in (batch for each in batches for batch in each):
        x.sub_(1)
    assert torch.equal(examples.inputs.flatten(), torch.arange(10.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_preparation_is_the_formula_and_leaves_its_input_alone(dtype):
    inputs = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(dtype)
    before = inputs.clone()
    prepare = Preparation(scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    out = prepare(inputs)
    for channel in range(3):
        expected = (before[:, channel].double() / 255 - prepare.mean[channel]) / prepare.std[channel]
        assert torch.allclose(out[:, channel].double(), expected, atol=1e-5)
    assert out.dtype == torch.float32
    assert torch.equal(inputs, before)


def test_preparation_refuses_a_zero_deviation():
    with pytest.raises(ConfigError, match="std"):
        Preparation(scale=1.0, mean=(0.0,), std=(0.0,))


@given(size=st.integers(0, 200), fraction=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 9))
def test_holding_out_cuts_in_two_and_never_takes_all(size: int, fraction: float, seed: int) -> None:
    kept, held_out = hold_out(size, fraction, np.random.default_rng(seed))
    assert sorted([*kept.tolist(), *held_out.tolist()]) == list(range(size))
    assert len(held_out) <= size * fraction < len(held_out) + 1
    assert size == 0 or len(kept) > 0


def test_validation_examples_are_training_examples_that_are_not_held_out() -> None:
    own = Examples(torch.arange(40.0).view(40, 1), torch.arange(40) % 3).take(torch.arange(10, 30))
    trained, held_out = with_held_out(own, 0.25, 0.0, np.random.default_rng(7))
    fitted, validation = with_held_out(own, 0.25, 0.2, np.random.default_rng(7))
    parts = [set(each.indices.tolist()) for each in (trained, held_out, fitted, validation) if each.indices is not None]
    assert [*map(len, parts)] == [15, 5, 12, 3]
    assert parts[0] | parts[1] == set(range(10, 30))
    assert parts[2] | parts[3] == parts[0]
    assert not parts[2] & parts[3]
