"""`handle`, the one function that every engine calls: a pure function of request, data and state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spherefed.assembly import Assembly
from spherefed.calibration import Ffc
from spherefed.calibration.ffc import statistics
from spherefed.client.client_state import InMemoryStates
from spherefed.client.handle import Client, answer_group, handle
from spherefed.client.personalization import FineTune
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.engines.local import in_groups
from spherefed.errors import ClientError
from spherefed.experiment import Data, Model
from spherefed.losses import CrossEntropy
from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Failure,
    Measure,
    MeasureReply,
    ModelState,
    Request,
    Train,
    TrainReply,
)
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Learned
from spherefed.server.algorithms import Algorithm, fedavg, fedrep, moon, scaffold
from spherefed.tensors import digest
from support.small import assembled, with_stack

PLAIN: dict[str, Any] = {
    "model": Model(encoder=Mlp(widths=(8,)), head=Learned()),
    "loss": CrossEntropy(),
    "local": LocalTraining(lr=0.1, epochs=2, batch_size=8),
    "calibration": None,
}


def federation(**changes: Any) -> Assembly:
    return assembled(**(PLAIN | changes))


def one(client: Client, request: Request, state: Any = None) -> tuple[Any, Any]:
    (answer,) = handle([client], request, [state])
    return answer


def fingerprint(reply: TrainReply) -> tuple[Any, ...]:
    """Everything that a reply says, comparable to the bit."""
    numbers = (reply.client, reply.round, reply.num_examples, reply.effective_steps, reply.loss)
    return (*numbers, digest(reply.delta), digest(reply.buffers), digest(reply.extra))


# Purity


@pytest.mark.parametrize("make", [fedavg, fedrep, scaffold, moon])
def test_the_same_request_and_state_give_the_same_reply_whatever_was_handled_in_between(
    make: Callable[[], Algorithm],
) -> None:
    local = replace(PLAIN["local"], head_epochs=1 if make is fedrep else 0)
    assembly = federation(algorithm=make(), local=local)
    clients, model = assembly.clients, assembly.initial()
    extra = {name: torch.full_like(p, 0.01) for name, p in model.params.items()} if make is scaffold else {}
    request = Train(1, model, 0.1, extra)
    _, state = one(clients[2], Train(0, model, 0.1, extra))
    assert (state is None) == (make is fedavg)
    first, first_state = one(clients[2], request, state)
    kept = digest(state or {})
    for client in (0, 2, 1):  # also the client itself, without and with another state
        one(clients[client], Train(3, model, 0.3, extra))
    one(clients[2], Evaluate(1, model), state)
    again, again_state = one(clients[2], request, state)
    assert fingerprint(again) == fingerprint(first)
    assert digest(again_state or {}) == digest(first_state or {})
    assert digest(state or {}) == kept  # what was given is not changed


def test_the_request_is_not_changed_by_training() -> None:
    assembly = federation()
    model = assembly.initial()
    before = model.digest()
    reply, _ = one(assembly.clients[0], Train(0, model, 0.5))
    assert model.digest() == before
    assert any(bool(delta.any()) for delta in reply.delta.values())


def test_round_and_client_choose_the_batches_and_nothing_else_does() -> None:
    """All clients have the same examples here, so that only their numbers differ."""
    assembly = federation(partition=Iid(clients=2))
    same = replace(assembly.clients, parts=[np.arange(30)] * 3)
    model = assembly.initial()

    def delta(client: int, round_index: int) -> str:
        return digest(one(same[client], Train(round_index, model, 0.1))[0].delta)

    assert len({delta(0, 0), delta(1, 0), delta(0, 1)}) == 3
    assert delta(1, 0) == delta(1, 0)


# Groups


@pytest.mark.parametrize("sizes", [[7, 30, 12], [8, 8, 8], [1, 40, 3]])
def test_stacked_clients_answer_in_the_order_given_with_their_own_replies(sizes: list[int]) -> None:
    assembly = with_stack(federation(), 3)
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    clients = replace(assembly.clients, parts=parts)
    request = Train(0, assembly.initial(), 0.1)
    group = [clients[number] for number in (2, 0, 1)]
    together = handle(group, request, [None] * 3, stacked=True)
    for client, (reply, state) in zip(group, together, strict=True):
        alone, _ = one(client, request)
        assert isinstance(reply, TrainReply)
        assert state is None
        assert (reply.client, reply.num_examples) == (client.id, sizes[client.id])
        assert reply.effective_steps == alone.effective_steps
        assert reply.loss == pytest.approx(alone.loss, rel=1e-5)
        for name, tensor in alone.delta.items():
            assert torch.allclose(reply.delta[name], tensor, atol=1e-5), name


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (0, [[4], [5], [6], [7], [8]]),
        (1, [[4], [5], [6], [7], [8]]),
        (2, [[4, 5], [6, 7], [8]]),
        (9, [[4, 5, 6, 7, 8]]),
    ],
)
def test_only_training_is_done_in_groups(stack: int, expected: list[list[int]]) -> None:
    model = ModelState({}, {})
    assert [list(group) for group in in_groups(range(4, 9), Train(0, model, 0.1), stack)] == expected
    for request in (Measure(0, model), Evaluate(0, model)):
        assert [list(group) for group in in_groups(range(4, 9), request, stack)] == [[4], [5], [6], [7], [8]]


def test_an_error_of_one_client_fails_that_client_of_a_group_only() -> None:
    assembly = with_stack(federation(), 3)
    bad = assembly.dataset.train.inputs.clone()
    bad[assembly.partition.parts[1]] = torch.nan
    examples = replace(assembly.dataset.train, inputs=bad)
    clients = replace(assembly.clients, examples=examples)
    request = Train(0, assembly.initial(), 0.1)
    answers = answer_group(clients, [0, 1, 2], request, None, stacked=True)
    assert [answer.client for answer in answers] == [0, 1, 2]
    # A client whose loss is not a number says so in its reply, which the server rejects.
    assert [isinstance(answer, TrainReply) and np.isfinite(answer.loss) for answer in answers] == [True, False, True]


def test_an_exception_becomes_a_failure_that_names_client_and_cause() -> None:
    assembly = federation()
    (answer,) = answer_group(assembly.clients, [2], Measure(0, assembly.initial()), None, stacked=False)
    assert answer == Failure(2, "ClientError: asked to measure, but the experiment has no calibration")


def test_a_new_state_is_stored_for_the_next_round_only() -> None:
    assembly = federation(algorithm=scaffold())
    model, store = assembly.initial(), InMemoryStates()
    zero = {name: torch.zeros_like(p) for name, p in model.params.items()}
    answer_group(assembly.clients, [1], Train(4, model, 0.1, zero), store, stacked=False)
    assert store.load(1, before=4) is None
    stored = store.load(1, before=5)
    assert stored is not None
    _, expected = one(assembly.clients[1], Train(4, model, 0.1, zero))
    assert digest(stored) == digest(expected)


# The other requests


def test_measuring_gives_the_statistics_of_the_clients_own_examples() -> None:
    assembly = federation(calibration=Ffc())
    client, model = assembly.clients[1], assembly.initial()
    reply, state = one(client, Measure(2, model), None)
    examples = client.examples
    inputs, labels = examples.inputs[examples.indices], examples.labels[examples.indices]
    assembly.local_model.load_state(model)
    expected = Ffc().measure(assembly.local_model.classifier, [(inputs, labels)])
    assert isinstance(reply, MeasureReply)
    assert (reply.client, reply.round, reply.num_examples) == (1, 2, len(labels))
    assert digest(reply.moments) == digest(expected)
    assert statistics(assembly.local_model.classifier, [(inputs, labels)]).num_examples == len(labels)
    assert state is None


@pytest.mark.parametrize(("min_samples", "allowed"), [(22, True), (23, True), (24, False)])
def test_statistics_of_too_few_examples_are_not_measured(min_samples: int, allowed: bool) -> None:
    assembly = federation(calibration=Ffc(), min_samples=min_samples)
    client = assembly.clients[0]
    assert len(client.examples) == 23
    if allowed:
        one(client, Measure(0, assembly.initial()))
    else:
        with pytest.raises(ClientError, match=f"min_samples is {min_samples}"):
            one(client, Measure(0, assembly.initial()))


def test_evaluation_counts_right_answers_on_what_the_client_holds_out() -> None:
    assembly = federation(data=Data(held_out=0.3))
    model = assembly.initial()
    for number in range(4):
        client = assembly.clients[number]
        reply, _ = one(client, Evaluate(0, model))
        mine = client.held_out
        classifier = assembly.local_model.classifier.eval()
        assembly.local_model.load_state(model)
        right = sum(
            int(classifier(mine.inputs[i : i + 1]).argmax()) == int(mine.labels[i]) for i in mine.indices.tolist()
        )
        assert reply == EvaluateReply(number, 0, len(mine), right)
        held_out, kept = set(mine.indices.tolist()), set(client.examples.indices.tolist())
        assert not held_out & kept
        assert held_out | kept == set(assembly.partition.parts[number].tolist())
        assert len(held_out) == int(0.3 * len(assembly.partition.parts[number]))


def test_without_a_held_out_part_there_is_nothing_to_evaluate_on() -> None:
    assembly = federation()
    assert one(assembly.clients[0], Evaluate(0, assembly.initial()))[0] == EvaluateReply(0, 0, 0, 0)


def test_a_personalization_trains_before_it_evaluates_and_leaves_no_trace() -> None:
    settings = {"data": Data(held_out=0.3), "personalization": FineTune(part="all", lr=0.5, epochs=20)}
    assembly = federation(**settings)
    client, model = assembly.clients[0], assembly.initial()
    plain, _ = one(client, Evaluate(0, model))
    own, state = one(client, Evaluate(0, model, personalize=True))
    assert own.correct > plain.correct
    assert state is None
    assert one(client, Evaluate(0, model))[0] == plain
    with pytest.raises(ClientError, match="no personalization"):
        one(federation(data=Data(held_out=0.3)).clients[0], Evaluate(0, model, personalize=True))


def test_a_client_without_examples_answers_every_request() -> None:
    assembly = federation(calibration=Ffc())
    empty = replace(assembly.clients, parts=[np.zeros(0, dtype=np.int64)])[0]
    model = assembly.initial()
    trained, _ = one(empty, Train(0, model, 0.1))
    assert (trained.num_examples, trained.effective_steps) == (0, 0.0)
    assert not any(bool(delta.any()) for delta in trained.delta.values())
    assert one(empty, Measure(0, model))[0].num_examples == 0
    assert one(empty, Evaluate(0, model))[0].num_examples == 0
