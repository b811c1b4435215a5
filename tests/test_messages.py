"""What travels: states come back from their named tensors, and bytes are counted as the numbers' own size."""

import pytest
import torch

from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Measure,
    MeasureReply,
    ModelState,
    Part,
    Traffic,
    Train,
    TrainReply,
    message_bytes,
    part_of,
)


def state(*, head: bool = False, learned: bool = False) -> ModelState:
    params = {"encoder.weight": torch.ones(4, 3)} | ({"head.weight": torch.ones(2, 4)} if learned else {})
    buffers = {"encoder.mean": torch.zeros(5, dtype=torch.float64)}
    return ModelState(params, buffers, {"weight": torch.full((2, 4), 7.0)} if head else None)


ENCODER, MEAN, HEAD = 4 * 4 * 3, 8 * 5, 4 * 2 * 4
"""Bytes: four per float32, eight per float64."""


@pytest.mark.parametrize("head", [False, True])
def test_a_state_comes_back_from_its_named_tensors(head: bool) -> None:
    model = state(head=head)
    back = ModelState.from_tensors(model.tensors())
    assert back.digest() == model.digest()
    assert (back.head is None) == (not head)
    assert (back.params.keys(), back.buffers.keys()) == (model.params.keys(), model.buffers.keys())


def test_a_tensor_of_no_known_part_is_refused() -> None:
    with pytest.raises(KeyError):
        ModelState.from_tensors({"other.weight": torch.ones(1)})


def test_a_new_head_replaces_a_learned_one_among_the_parameters_and_a_fixed_one_beside_them() -> None:
    weight = torch.full((2, 4), 3.0, dtype=torch.float64)
    learned = state(learned=True).with_head(weight)
    assert learned.head is None
    assert torch.equal(learned.params["head.weight"], weight.float())
    assert learned.params["head.weight"].dtype == torch.float32
    fixed = state().with_head(weight)
    assert fixed.head is not None
    assert torch.equal(fixed.head["weight"], weight)
    assert "head.weight" not in fixed.params


def test_new_buffers_leave_parameters_and_head_as_they_are() -> None:
    before = state(head=True)
    after = before.with_buffers({"encoder.mean": torch.ones(5)})
    assert torch.equal(after.buffers["encoder.mean"], torch.ones(5))
    assert (after.params, after.head) == (before.params, before.head)
    assert torch.equal(before.buffers["encoder.mean"], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("part", "expected"),
    [("all", ["encoder.w", "head.weight", "header.w"]), ("encoder", ["encoder.w"]), ("head", ["head.weight"])],
)
def test_a_part_of_a_model_is_named_by_its_whole_first_word(part: Part, expected: list[str]) -> None:
    assert list(part_of({name: torch.ones(1) for name in ("encoder.w", "head.weight", "header.w")}, part)) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Train(0, state(), 0.1), 2 * 8 + ENCODER + MEAN),
        (Train(0, state(head=True), 0.1, {"c": torch.ones(3)}), 2 * 8 + ENCODER + MEAN + HEAD + 12),
        (Measure(0, state()), 8 + ENCODER + MEAN),
        (Evaluate(0, state(), personalize=True), 2 * 8 + ENCODER + MEAN),  # a truth value is a scalar too
        (TrainReply(0, 0, 5, 1.0, 0.5, {"w": torch.ones(3)}, {"b": torch.ones(2)}), 5 * 8 + 12 + 8),
        (MeasureReply(0, 0, 5, {"gram": torch.ones(6, dtype=torch.int64)}), 3 * 8 + 48),
        (EvaluateReply(0, 0, 5, 4, {"counts": torch.zeros(3, 7, dtype=torch.int64)}), 4 * 8 + 3 * 7 * 8),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_a_message_weighs_its_tensors_and_eight_bytes_per_scalar(message: object, expected: int) -> None:
    assert message_bytes(message) == expected


def test_traffic_adds_up_by_client_and_direction() -> None:
    traffic = Traffic()
    request, reply = Measure(0, state()), EvaluateReply(0, 0, 5, 4)
    traffic.sent([3, 1], request)
    traffic.sent([3], request)
    traffic.received(1, reply)
    traffic.received(1, reply)
    size = 8 + ENCODER + MEAN
    assert traffic.down == {3: 2 * size, 1: size}
    assert traffic.up == {1: 64}
