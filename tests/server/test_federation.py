"""The round loop, admission and combine, with fleets that misbehave on purpose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from spherefed.assembly import Assembly
from spherefed.client.training import LocalTraining
from spherefed.errors import FederationError
from spherefed.messages import EvaluateReply, Failure, ModelState, Reply, Request, TrainReply
from spherefed.server.algorithms import Algorithm, fedavg
from spherefed.server.federation import Fleet, Plan, Round, federate, sample
from spherefed.server.optimizers import ServerSgd
from support.fleets import Only, Tampered
from support.small import assembled, in_process


def first_round(fleet: Fleet, assembly: Assembly, model: ModelState, **changes: object) -> Round:
    return next(federate(fleet, model, replace(assembly.plan(), **changes)))  # type: ignore[arg-type]


def with_first(tensors: "dict[str, Tensor]", change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    name = next(iter(tensors))
    return {**tensors, name: change(tensors[name])}


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        copy.view(-1)[-1] = value
        return copy

    return change


def delta(change: Callable[[Tensor], Tensor]) -> Callable[[TrainReply], TrainReply]:
    return lambda r: replace(r, delta=with_first(dict(r.delta), change))


FAULTS: dict[str, tuple[Callable[[TrainReply], Reply | Failure], str]] = {
    "a missing name": (lambda r: replace(r, delta=dict(list(r.delta.items())[1:])), "missing"),
    "another name": (lambda r: replace(r, delta={**r.delta, "more": torch.zeros(1)}), "unexpected"),
    "another shape": (delta(lambda t: t[:1]), "shape"),
    "a transposed shape": (delta(lambda t: t.T), "shape"),
    "another dtype": (delta(lambda t: t.double()), "dtype"),
    "NaN": (delta(poisoned(float("nan"))), "not finite"),
    "infinity": (delta(poisoned(float("inf"))), "not finite"),
    "opposite infinities": (
        delta(lambda t: poisoned(float("-inf"))(t).index_fill(0, torch.tensor(0), torch.inf)),
        "finite",
    ),
    "extra buffers": (lambda r: replace(r, buffers={"b": torch.zeros(1)}), "buffers"),
    "a late round": (lambda r: replace(r, round=r.round - 1), "round -1"),
    "an early round": (lambda r: replace(r, round=r.round + 1), "round 1"),
    "a negative number of examples": (lambda r: replace(r, num_examples=-5), "-5 examples"),
    "no steps": (lambda r: replace(r, effective_steps=0.0), "effective steps"),
    "endless steps": (lambda r: replace(r, effective_steps=float("inf")), "effective steps"),
    "a NaN loss": (lambda r: replace(r, loss=float("nan")), "loss"),
    "another kind of reply": (lambda r: EvaluateReply(r.client, r.round, 5, 5), "EvaluateReply"),
    "a failure": (lambda r: Failure(r.client, "out of memory"), "out of memory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_refused_reply_leaves_the_result_of_the_remaining_clients_to_the_bit(name: str) -> None:
    fault, cause = FAULTS[name]
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, TrainReply)
        return [fault(answer)] if answer.client == 1 else [answer]

    done = first_round(Tampered(fleet, tamper), assembly, model)
    rest = first_round(Only(fleet, [0, 2, 3]), assembly, model)
    assert done.model.digest() == rest.model.digest()
    assert done.clients == (0, 2, 3)
    (rejection,) = done.rejected
    assert (rejection.round, rejection.client) == (0, 1)
    assert cause in rejection.cause


def test_a_client_that_does_not_answer_is_recorded_and_left_out() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    done = first_round(Tampered(fleet, lambda a: [] if a.client in (2, 0) else [a]), assembly, model)
    rest = first_round(Only(fleet, [1, 3]), assembly, model)
    assert done.model.digest() == rest.model.digest()
    assert [(r.client, r.cause) for r in done.rejected] == [(0, "did not answer"), (2, "did not answer")]
    assert done.traffic.up.keys() == {1, 3}
    assert done.traffic.down.keys() == {0, 1, 2, 3}


def test_a_second_answer_and_one_that_nobody_asked_for_count_for_nothing() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, TrainReply)
        if answer.client != 1:
            return [answer]
        return [answer, answer, replace(answer, client=77), Failure(1, "late failure"), Failure(78, "who?")]

    done = first_round(Tampered(fleet, tamper), assembly, model)
    assert done.model.digest() == first_round(fleet, assembly, model).model.digest()
    assert [(r.client, r.cause) for r in done.rejected] == [
        (1, "answered twice"),
        (77, "was not asked"),
        (1, "answered twice"),
        (78, "was not asked"),
    ]


def test_a_late_reply_does_not_take_the_place_of_the_right_one() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, TrainReply)
        return [replace(answer, round=-1), answer] if answer.client == 1 else [answer]

    done = first_round(Tampered(fleet, tamper), assembly, model)
    assert done.model.digest() == first_round(fleet, assembly, model).model.digest()
    assert [(r.client, r.cause) for r in done.rejected] == [(1, "answered round -1 in round 0")]


def test_answers_that_count_for_nothing_do_not_outvote_one_good_reply() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        if answer.client == 0:
            return [answer, answer, *(Failure(stranger, "who?") for stranger in range(10, 20))]
        return []

    done = first_round(Tampered(fleet, tamper), assembly, model)
    assert done.model.digest() == first_round(Only(fleet, [0]), assembly, model).model.digest()


def test_a_round_that_nobody_answers_is_an_error() -> None:
    assembly = assembled()
    fleet = Tampered(in_process(assembly), lambda a: [Failure(a.client, "out of memory")])
    with pytest.raises(FederationError, match=r"round 0: no client.*client 0: out of memory"):
        first_round(fleet, assembly, assembly.initial())
    with pytest.raises(FederationError, match="did not answer"):
        first_round(Tampered(in_process(assembly), lambda a: []), assembly, assembly.initial())


def test_names_in_another_order_are_the_same_reply() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, TrainReply)
        return [replace(answer, delta=dict(reversed(answer.delta.items())))] if answer.client % 2 else [answer]

    done = first_round(Tampered(fleet, tamper), assembly, model)
    assert done.model.digest() == first_round(fleet, assembly, model).model.digest()


def test_a_cohort_without_examples_moves_nothing() -> None:
    assembly = assembled()
    model = assembly.initial()
    none = np.zeros(0, dtype=np.int64)
    empty = replace(assembly, partition=replace(assembly.partition, parts=(none,) * 4))
    rounds = list(federate(in_process(empty), model, empty.plan(), server_state={"v": torch.ones(1)}))
    assert [r.model.digest() for r in rounds] == [model.digest()] * 3
    assert all((r.num_examples, r.rejected, r.clients) == (0, (), (0, 1, 2, 3)) for r in rounds)
    assert all(torch.equal(r.server_state["v"], torch.ones(1)) for r in rounds)


def test_plain_averaging_ends_at_the_mean_of_the_clients_models() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    replies: list[TrainReply] = []

    def keep(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, TrainReply)
        replies.append(answer)
        return [answer]

    done = first_round(Tampered(fleet, keep), assembly, model, algorithm=fedavg())
    total = sum(r.num_examples for r in replies)
    for name, start in model.params.items():
        locals_ = [(start.double() + r.delta[name].double()) * r.num_examples / total for r in replies]
        assert torch.allclose(done.model.params[name].double(), sum(locals_[1:], start=locals_[0]), atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.3])
def test_the_server_follows_torchs_sgd_on_the_negative_delta(momentum: float) -> None:
    server = ServerSgd(lr=0.7, momentum=momentum)
    weight = torch.nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([weight], lr=0.7, momentum=momentum)
    ours, memory = torch.zeros(5), {}
    for seed in range(6):
        step = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        update, memory = server.step({"w": step}, memory)
        ours = ours + update["w"]
        weight.grad = -step
        optimizer.step()
        assert torch.allclose(ours, weight.detach(), atol=1e-6)
    assert (memory == {}) == (momentum == 0.0)


def test_going_on_from_a_yielded_round_gives_the_same_rounds_to_the_bit() -> None:
    assembly = assembled(rounds=6, cohort=2, algorithm=Algorithm(server=ServerSgd(lr=0.8, momentum=0.5)))
    model, fleet, plan = assembly.initial(), in_process(assembly), assembly.plan()
    rounds = list(federate(fleet, model, plan))
    assert [r.index for r in rounds] == list(range(6))
    for done in rounds[:-1]:
        (after, *_) = federate(fleet, done.model, plan, start=done.index + 1, server_state=done.server_state)
        assert after.model.digest() == rounds[done.index + 1].model.digest()
        assert after.clients == rounds[done.index + 1].clients


def test_only_the_cohort_is_asked() -> None:
    assembly = assembled(rounds=8, cohort=2)
    asked: list[list[int]] = []

    class Spy(Only):
        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
            asked.append(list(clients))
            return super().ask(clients, request)

    rounds = list(federate(Spy(in_process(assembly), range(4)), assembly.initial(), assembly.plan()))
    assert [list(r.clients) for r in rounds] == asked
    assert all(len(set(chosen)) == 2 and chosen == sorted(chosen) for chosen in asked)
    assert {client for chosen in asked for client in chosen} == {0, 1, 2, 3}
    assert all(r.traffic.down.keys() == set(chosen) for r, chosen in zip(rounds, asked, strict=True))


def test_samples_are_ascending_distinct_seeded_and_uniform() -> None:
    clients = range(100, 110)
    plan = Plan(learning_rates=(), cohort=3, algorithm=fedavg(), seed=5)
    counts = dict.fromkeys(clients, 0)
    for t in range(2000):
        chosen = sample(clients, plan, t)
        assert list(chosen) == sorted(set(chosen))
        assert len(chosen) == 3
        assert list(chosen) == list(sample(clients, plan, t))
        for client in chosen:
            counts[client] += 1
    # 600 expected each, standard deviation 20.5: six of them either way.
    assert all(abs(count - 600) < 125 for count in counts.values())
    assert list(sample(clients, replace(plan, cohort=None), 0)) == list(clients)
    assert list(sample(clients, replace(plan, cohort=10), 0)) == list(clients)


def test_traffic_counts_the_numbers_that_travel_and_the_fixed_head_costs_nothing() -> None:
    assembly = assembled()
    model = assembly.initial()
    done = first_round(in_process(assembly), assembly, model)
    encoder = sum(p.numel() for p in assembly.local_model.classifier.encoder.parameters())
    assert set(done.traffic.down.values()) == {4 * encoder + 2 * 8}  # round and lr
    assert set(done.traffic.up.values()) == {4 * encoder + 5 * 8}  # client, round, examples, steps, loss


@pytest.mark.parametrize("lr", [1e9, 1e7])
def test_training_that_diverges_at_every_client_advises_a_lower_rate(lr: float) -> None:
    assembly = assembled(calibration=None, local=LocalTraining(lr=lr, epochs=2), rounds=2)
    with pytest.raises(FederationError, match=r"diverged at every client: lower local\.lr, whose value .* is 1e\+0"):
        list(federate(in_process(assembly), assembly.initial(), assembly.plan()))
