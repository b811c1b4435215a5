"""What engines of several processes share: the order of groups, and messages as plain arrays."""

import pickle

import numpy as np
import pytest
import torch

from spherefed.engines.transfer import WINDOW, from_arrays, largest_first, to_arrays
from spherefed.messages import Failure, ModelState, Train, TrainReply


@pytest.mark.parametrize("group_size", [1, 3])
def test_every_group_comes_once_and_the_largest_of_each_window_first(group_size: int) -> None:
    rng = np.random.default_rng(0)
    num_groups = 2 * WINDOW + 7
    sizes = rng.integers(0, 50, size=num_groups * group_size)
    parts = [np.arange(size) for size in sizes]
    groups = [range(start, start + group_size) for start in range(0, len(parts), group_size)]
    order = list(largest_first(groups, parts))
    assert sorted(order) == list(range(num_groups))
    totals = [sum(int(sizes[number]) for number in groups[task]) for task in order]
    for start in range(0, num_groups, WINDOW):
        window = totals[start : start + WINDOW]
        assert window == sorted(window, reverse=True)
        assert set(order[start : start + WINDOW]) == set(range(start, min(start + WINDOW, num_groups)))


MODEL = ModelState({"w": torch.randn(2, 3)}, {"mean": torch.ones(2).double()}, {"weight": torch.arange(4)})


@pytest.mark.parametrize(
    "message",
    [
        Train(3, MODEL, 0.1, {"c": torch.zeros(0)}),
        TrainReply(1, 3, 5, 2.0, 0.5, {"w": torch.randn(2, 3)}, {}),
        Failure(2, "lost"),
        {7: None, 8: {"private.w": torch.ones(1)}},
        None,
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_comes_back_from_arrays_and_holds_no_tensor_on_the_way(message: object) -> None:
    arrays = to_arrays(message)
    sent = pickle.dumps(arrays)
    assert b"torch" not in sent.replace(b"spherefed", b"")
    assert str(from_arrays(pickle.loads(sent))) == str(message)


def test_read_only_arrays_are_copied_and_others_shared() -> None:
    writable, read_only = np.ones(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    read_only.flags.writeable = False
    found = from_arrays({"a": writable, "b": read_only})
    found["a"][0] = found["b"][0] = 5.0
    assert writable[0] == 5.0
    assert read_only[0] == 1.0
