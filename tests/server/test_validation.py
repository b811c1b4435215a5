"""Which replies count: every check on its own, one bad reply at a time, and what a closed log says."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch

from spherefed.errors import FederationError
from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Failure,
    Measure,
    MeasureReply,
    ModelState,
    Train,
    TrainReply,
    message_bytes,
)
from spherefed.server.reply_checks import MAX_STEPS, MIN_STEPS, Limits
from spherefed.server.validation import MAX_SHOWN, ReplyLog, min_replies

ROUND = 4
MAX_EXAMPLES = Limits().max_examples
MODEL = ModelState({"w": torch.zeros(3), "v": torch.zeros(2, 2)}, {"mean": torch.zeros(2)})
TRAIN = Train(ROUND, MODEL, 0.1, {"c": torch.zeros(3)})
MEASURE, EVALUATE = Measure(ROUND, MODEL), Evaluate(ROUND, MODEL)


def good(client: int = 0, **changes: Any) -> TrainReply:
    reply = TrainReply(
        client,
        ROUND,
        10,
        5.0,
        0.5,
        {"w": torch.ones(3), "v": torch.ones(2, 2)},
        {"mean": torch.ones(2)},
        {"c": torch.ones(3)},
    )
    return replace(reply, **changes)


def train_log(asked: Sequence[int] = (0, 1, 2)) -> "ReplyLog[TrainReply]":
    return ReplyLog(TrainReply, TRAIN, asked)


def test_a_good_reply_counts_and_is_handed_on_as_it_is() -> None:
    log, reply = train_log(), good(1)
    assert log.validate(reply) is reply
    assert log.accepted == [1]
    assert log.rejected == []


BAD = {
    "another kind": (EvaluateReply(0, ROUND, 5, 4), "answered with a EvaluateReply, expected a TrainReply"),
    "another round": (good(round=3), "answered round 3 in round 4"),
    "negative examples": (good(num_examples=-1), "claims -1 examples"),
    "too many examples": (good(num_examples=MAX_EXAMPLES + 1), f"claims {MAX_EXAMPLES + 1} examples"),
    "a name missing": (good(delta={"w": torch.ones(3)}), "delta: names differ: missing ['v']"),
    "a name too many": (good(extra={"c": torch.ones(3), "d": torch.ones(1)}), "unexpected ['d']"),
    "another shape": (good(buffers={"mean": torch.ones(1)}), "buffers: 'mean' has shape (1,), expected (2,)"),
    "another type": (good(extra={"c": torch.ones(3).double()}), "extra: 'c' has dtype torch.float64"),
    "NaN in the delta": (
        good(delta={"w": torch.ones(3), "v": torch.full((2, 2), nan)}),
        "delta: 'v' is not finite",
    ),
    "infinite buffers": (good(buffers={"mean": torch.tensor([inf, 1.0])}), "buffers: 'mean' is not finite"),
    "infinite extras": (good(extra={"c": torch.tensor([1.0, -inf, 1.0])}), "extra: 'c' is not finite"),
    "a loss of NaN": (good(loss=nan), "loss is nan"),
    "an infinite loss": (good(loss=inf), "loss is inf"),
    "no steps": (good(effective_steps=0.0), "claims 0.0 effective steps"),
    "negative steps": (good(effective_steps=-2.0), "claims -2.0 effective steps"),
    "too few steps": (good(effective_steps=MIN_STEPS / 2), "effective steps"),
    "too many steps": (good(effective_steps=2 * MAX_STEPS), "effective steps"),
    "infinite steps": (good(effective_steps=inf), "claims inf effective steps"),
    "steps of NaN without examples": (good(num_examples=0, effective_steps=nan), "claims nan effective steps"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_does_not_count_and_its_cause_is_recorded(name: str) -> None:
    reply, cause = BAD[name]
    log = train_log()
    assert log.validate(reply) is None
    assert log.accepted == []
    (line,) = log.rejected
    assert (line.round, line.client) == (ROUND, 0)
    assert cause in line.cause


@pytest.mark.parametrize(
    "reply",
    [
        good(num_examples=0, effective_steps=0.0),  # a client without examples takes no step
        good(num_examples=MAX_EXAMPLES),
        good(effective_steps=2 * MIN_STEPS),
        good(effective_steps=MAX_STEPS / 2),
        good(delta={"v": torch.ones(2, 2), "w": torch.ones(3)}),  # the order of names does not matter
    ],
)
def test_values_within_the_limits_count(reply: TrainReply) -> None:
    assert train_log().validate(reply) is reply


def evaluated(right: list[Any], examples: list[Any], answers: list[Any], correct: int | None = None) -> EvaluateReply:
    counts = {"counts": torch.tensor([right, examples, answers])} if len(right) == len(examples) else {}
    return EvaluateReply(0, ROUND, int(sum(examples)) % 2**62, int(sum(right)) if correct is None else correct, counts)


@pytest.mark.parametrize(
    ("request_", "reply", "cause"),
    [
        (MEASURE, MeasureReply(0, ROUND, 5, {"gram": torch.tensor([nan])}), "'gram' is not finite"),
        (EVALUATE, EvaluateReply(0, ROUND, 5, 6), "claims 6"),
        (EVALUATE, EvaluateReply(0, ROUND, 5, -1), "claims -1"),
        (MEASURE, MeasureReply(0, ROUND, 5, {"gram": torch.ones(1)}), None),
        (EVALUATE, evaluated([2, 3], [2, 3], [2, 3]), None),
        (EVALUATE, evaluated([0, 0], [0, 0], [0, 0]), None),
        (EVALUATE, evaluated([1, 0], [4, 1], [3, 2]), None),
        (EVALUATE, EvaluateReply(0, ROUND, 5, 5), None),  # a site may omit the counts of classes
        (EVALUATE, EvaluateReply(0, ROUND, 5, 5, {"other": torch.zeros(3, 2)}), "one tensor 'counts' (3, classes)"),
        (EVALUATE, evaluated([1.0], [1.0], [1.0]), "got 'counts' (3, 1) torch.float32"),
        (EVALUATE, evaluated([1, 0], [4, 1], [3, 2], correct=2), "do not add up to 2 correct answers of 5"),
        (EVALUATE, evaluated([1, 0], [4, 1], [3, 1]), "do not add up"),
        (EVALUATE, evaluated([2, -1], [4, 1], [3, 2]), "do not add up"),
        (EVALUATE, evaluated([1, 2], [4, 1], [1, 4]), "do not add up"),  # more correct answers than examples
        (EVALUATE, evaluated([2, 0], [4, 1], [1, 4]), "do not add up"),  # more correct answers than answers
        (EVALUATE, evaluated([0, 0, 0, 0], [2**62] * 4, [2**62] * 4), "do not add up"),  # their sum overflows to 0
    ],
)
def test_measurements_and_evaluations_are_checked(request_: Any, reply: Any, cause: str | None) -> None:
    log: ReplyLog[Any] = ReplyLog(type(reply), request_, [0])
    assert (log.validate(reply) is reply) == (cause is None)
    assert [cause is not None and cause in line.cause for line in log.rejected] == ([] if cause is None else [True])


def test_a_failure_is_recorded_with_its_own_cause() -> None:
    log = train_log()
    assert log.validate(Failure(2, "its worker died")) is None
    assert [(line.client, line.cause) for line in log.rejected] == [(2, "its worker died")]


def test_a_client_counts_once_and_strangers_never() -> None:
    log = train_log(asked=[0, 1])
    first = good(0)
    assert [log.validate(answer) for answer in (first, good(0), good(7), Failure(0, "late failure"))] == [
        first,
        None,
        None,
        None,
    ]
    causes = [(line.client, line.cause) for line in log.rejected]
    assert causes == [(0, "answered twice"), (7, "was not asked"), (0, "answered twice")]
    assert log.accepted == [0]


def test_a_reply_after_a_bad_one_of_the_same_round_is_a_second_answer() -> None:
    log = train_log()
    assert log.validate(good(0, loss=nan)) is None
    assert log.validate(good(0)) is None
    assert [line.cause for line in log.rejected] == ["loss is nan", "answered twice"]


def test_a_late_reply_of_another_round_does_not_take_the_place_of_the_right_one() -> None:
    log, right = train_log(asked=[0]), good(0)
    assert log.validate(good(0, round=3)) is None
    assert log.validate(right) is right
    log.close("round 4", quorum=1.0)
    assert log.accepted == [0]


def test_missing_answers_are_recorded_in_ascending_order_when_the_log_is_closed() -> None:
    log = train_log(asked=[5, 3, 1, 0])
    log.validate(good(1))
    log.validate(good(0, round=3))  # it did answer, if only another round
    log.close("round 4")
    assert [(line.client, line.cause) for line in log.rejected[1:]] == [(3, "did not answer"), (5, "did not answer")]


def test_a_reply_rejected_later_no_longer_counts() -> None:
    log = train_log()
    for client in (0, 1, 2):
        log.validate(good(client))
    log.reject(1, "its moments cannot be")
    assert log.accepted == [0, 2]
    assert [(line.round, line.client, line.cause) for line in log.rejected] == [(ROUND, 1, "its moments cannot be")]


@pytest.mark.parametrize(
    ("quorum", "num_good", "enough"),
    [(0.0, 1, True), (0.5, 1, False), (0.5, 2, True), (0.75, 3, True), (1.0, 3, False), (1.0, 4, True)],
)
def test_a_round_needs_its_quorum(quorum: float, num_good: int, enough: bool) -> None:
    log = train_log(asked=range(4))
    for client in range(num_good):
        log.validate(good(client))
    if enough:
        log.close("round 4", quorum)
    else:
        with pytest.raises(
            FederationError, match=rf"round 4: {num_good} of 4 clients .* needs {min_replies(quorum, 4)}"
        ):
            log.close("round 4", quorum)


def test_a_request_that_nobody_answers_is_an_error_whatever_the_quorum() -> None:
    log = train_log(asked=range(MAX_SHOWN + 3))
    with pytest.raises(FederationError, match=r"no client gave a usable reply; client 0: did not answer") as caught:
        log.close("round 4")
    assert f"client {MAX_SHOWN - 1}: " in str(caught.value)
    assert f"client {MAX_SHOWN}: " not in str(caught.value)
    assert str(caught.value).endswith("and 3 more")


def test_nobody_asked_is_no_error() -> None:
    log = train_log(asked=[])
    log.close("round 4", quorum=1.0)
    assert log.rejected == []


def test_traffic_counts_every_request_and_every_reply_also_rejected_ones() -> None:
    log, reply, bad = train_log(asked=[0, 1, 2]), good(0), good(1, loss=nan)
    for answer in (reply, bad, good(7), Failure(2, "lost")):
        log.validate(answer)
    down, up = message_bytes(TRAIN), message_bytes(reply)
    assert log.traffic.down == {0: down, 1: down, 2: down}
    assert log.traffic.up == {0: up, 1: up, 7: up}


@pytest.mark.parametrize("num_asked", [1, 3, 25, 100, 997])
def test_the_quorum_is_the_smallest_number_that_is_no_less_than_its_share(num_asked: int) -> None:
    for hundredths in range(101):
        whole, rest = divmod(hundredths * num_asked, 100)
        assert min_replies(hundredths / 100, num_asked) == whole + (rest > 0)
