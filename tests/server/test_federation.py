"""The round loop, admission and combine, with fleets that misbehave on purpose."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from small import assembled, calibrated, in_process
from spherefed.algorithms import Algorithm, Combined, combine, fedavg
from spherefed.assembly import Assembly
from spherefed.calibration import Ffc
from spherefed.errors import ConfigError, FederationError
from spherefed.federation import Fleet, Plan, Round, federate, sample
from spherefed.gathering import evaluate_on_clients
from spherefed.messages import EvaluateReply, Failure, MeasureReply, ModelState, Reply, Request, TrainReply
from spherefed.rng import Purpose, stream
from spherefed.schedules import Constant, Cosine, MultiStep, Schedule
from spherefed.server_optimizers import ServerSgd

Tamper = Callable[[Reply | Failure], "list[Reply | Failure]"]


class Tampered:
    """A fleet whose answers pass through a function that may change, drop or repeat them."""

    def __init__(self, fleet: Fleet, tamper: Tamper) -> None:
        self.fleet, self.tamper = fleet, tamper

    @property
    def clients(self) -> Sequence[int]:
        return self.fleet.clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        for answer in self.fleet.ask(clients, request):
            yield from self.tamper(answer)


class Only:
    """A fleet that knows some of the clients only."""

    def __init__(self, fleet: Fleet, clients: Sequence[int]) -> None:
        self.fleet, self.clients = fleet, clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        return self.fleet.ask(clients, request)


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
    (refusal,) = done.refused
    assert (refusal.round, refusal.client) == (0, 1)
    assert cause in refusal.cause


def test_a_client_that_does_not_answer_is_recorded_and_left_out() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    done = first_round(Tampered(fleet, lambda a: [] if a.client in (2, 0) else [a]), assembly, model)
    rest = first_round(Only(fleet, [1, 3]), assembly, model)
    assert done.model.digest() == rest.model.digest()
    assert [(r.client, r.cause) for r in done.refused] == [(0, "did not answer"), (2, "did not answer")]
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
    assert [(r.client, r.cause) for r in done.refused] == [
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
    assert [(r.client, r.cause) for r in done.refused] == [(1, "answered round -1 in round 0")]


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


def reply(client: int, n: int, steps: float, seed: int, buffers: bool = True) -> TrainReply:
    generator = torch.Generator().manual_seed(seed)
    return TrainReply(
        client=client,
        round=0,
        num_examples=n,
        effective_steps=steps,
        loss=float(client),
        delta={"w": torch.randn(3, 4, generator=generator), "b": torch.randn(4, generator=generator)},
        buffers={"mean": torch.randn(4, generator=generator)} if buffers else {},
    )


def some_replies(count: int = 6, *, equal_steps: bool = False) -> list[TrainReply]:
    rng = np.random.default_rng(count)
    return [
        reply(k, int(rng.integers(1, 500)), 7.0 if equal_steps else float(rng.uniform(1, 90)), k) for k in range(count)
    ]


def maybe_combined(replies: Iterable[TrainReply], *, normalize_steps: bool = False) -> Combined | None:
    return combine(replies, normalize_steps=normalize_steps)


def combined(replies: list[TrainReply], *, normalize_steps: bool = False) -> Combined:
    result = maybe_combined(iter(replies), normalize_steps=normalize_steps)
    assert result is not None
    return result


@pytest.mark.parametrize("normalize_steps", [False, True])
def test_combine_equals_the_papers_formula_in_float64(normalize_steps: bool) -> None:
    replies = some_replies()
    result = combined(replies, normalize_steps=normalize_steps)
    n = np.array([r.num_examples for r in replies], dtype=np.float64)
    p = n / n.sum()
    a = np.array([r.effective_steps if normalize_steps else 1.0 for r in replies])
    for name in ("w", "b"):
        deltas = np.stack([r.delta[name].double().numpy() for r in replies])
        expected = (p @ a) * np.tensordot(p / a, deltas, axes=1)
        assert np.allclose(result.params[name].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert result.params[name].dtype == torch.float32
    means = np.stack([r.buffers["mean"].double().numpy() for r in replies])
    assert np.allclose(result.buffers["mean"].numpy(), p @ means, rtol=1e-5, atol=1e-6)
    assert result.loss == pytest.approx(float(p @ np.array([r.loss for r in replies])))
    assert result.num_examples == n.sum()
    assert result.clients == tuple(range(6))


def test_fednova_equals_fedavg_when_clients_take_equal_steps() -> None:
    replies = some_replies(equal_steps=True)
    nova, avg = combined(replies, normalize_steps=True), combined(replies)
    for name in avg.params:
        assert torch.allclose(nova.params[name], avg.params[name], rtol=1e-5, atol=1e-7)
    unequal = combined(some_replies(), normalize_steps=True)
    assert not torch.allclose(unequal.params["w"], combined(some_replies()).params["w"], rtol=1e-2)


def test_combine_does_not_depend_on_the_order_of_clients() -> None:
    replies = some_replies(8)
    for normalize_steps in (False, True):
        forward = combined(replies, normalize_steps=normalize_steps)
        backward = combined(replies[::-1], normalize_steps=normalize_steps)
        assert all(torch.allclose(forward.params[n], backward.params[n], atol=1e-5) for n in forward.params)


def test_combine_leaves_the_replies_alone_and_streams_them() -> None:
    alive = 0

    def streaming() -> Iterator[TrainReply]:
        nonlocal alive
        for r in some_replies():
            alive += 1
            yield r
            alive -= 1

    replies = some_replies()
    before = [{n: t.clone() for n, t in r.delta.items()} for r in replies]
    result = combined(replies)
    assert all(torch.equal(r.delta[n], b[n]) for r, b in zip(replies, before, strict=True) for n in b)
    again = maybe_combined(streaming())
    assert alive == 0
    assert again is not None
    assert torch.equal(again.params["w"], result.params["w"])


def test_zero_deltas_move_nothing_and_clients_without_examples_do_not_count() -> None:
    still = [replace(r, delta={n: torch.zeros_like(t) for n, t in r.delta.items()}) for r in some_replies()]
    assert all(not bool(t.any()) for t in combined(still, normalize_steps=True).params.values())
    empty = replace(reply(9, 0, 0.0, 9), loss=1e9)
    with_empty, without = (
        combined([*some_replies(), empty], normalize_steps=True),
        combined(some_replies(), normalize_steps=True),
    )
    assert torch.equal(with_empty.params["w"], without.params["w"])
    assert with_empty.loss == without.loss
    assert maybe_combined([empty]) is None
    assert maybe_combined([]) is None


def test_a_cohort_without_examples_moves_nothing() -> None:
    assembly = assembled()
    model = assembly.initial()
    none = np.zeros(0, dtype=np.int64)
    empty = replace(assembly, partition=replace(assembly.partition, parts=(none,) * 4))
    rounds = list(federate(in_process(empty), model, empty.plan(), memory={"v": torch.ones(1)}))
    assert [r.model.digest() for r in rounds] == [model.digest()] * 3
    assert all((r.num_examples, r.refused, r.clients) == (0, (), (0, 1, 2, 3)) for r in rounds)
    assert all(torch.equal(r.memory["v"], torch.ones(1)) for r in rounds)


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
        (after, *_) = federate(fleet, done.model, plan, start=done.index + 1, memory=done.memory)
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
    counts = dict.fromkeys(clients, 0)
    for t in range(2000):
        chosen = sample(clients, 3, stream(5, Purpose.COHORT, t))
        assert list(chosen) == sorted(set(chosen))
        assert len(chosen) == 3
        assert list(chosen) == list(sample(clients, 3, stream(5, Purpose.COHORT, t)))
        for client in chosen:
            counts[client] += 1
    # 600 expected each, standard deviation 20.5: six of them either way.
    assert all(abs(count - 600) < 125 for count in counts.values())
    assert list(sample(clients, None, stream(0, Purpose.COHORT))) == list(clients)
    assert list(sample(clients, 10, stream(0, Purpose.COHORT))) == list(clients)


def test_traffic_counts_the_numbers_that_travel_and_the_fixed_head_costs_nothing() -> None:
    assembly = assembled()
    model = assembly.initial()
    done = first_round(in_process(assembly), assembly, model)
    encoder = sum(p.numel() for p in assembly.bench.classifier.encoder.parameters())
    assert set(done.traffic.down.values()) == {4 * encoder + 2 * 8}  # round and lr
    assert set(done.traffic.up.values()) == {4 * encoder + 5 * 8}  # client, round, examples, steps, loss


SCHEDULES: list[Schedule] = [Constant(), Cosine(), MultiStep(every=4, gamma=0.1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rates_follow_torchs_schedulers_round_by_round(schedule: Schedule) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = {
        "constant": torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
        "multistep": torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1),
    }[schedule.kind]
    for t in range(10):
        assert 0.4 * schedule.factor(t, 10) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_the_scheduled_rate_is_what_clients_are_sent() -> None:
    assembly = assembled(rounds=4, schedule=Cosine())
    sent: list[float] = []

    class Spy(Only):
        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
            sent.append(request.lr)  # type: ignore[union-attr]
            return super().ask(clients, request)

    rounds = list(federate(Spy(in_process(assembly), range(4)), assembly.initial(), assembly.plan()))
    assert sent == [r.lr for r in rounds] == [0.5 * Cosine().factor(t, 4) for t in range(4)]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"gamma": 0.0}, {"gamma": 1.5}, {"gamma": float("nan")}])
def test_impossible_schedules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        MultiStep(**wrong)  # type: ignore[arg-type]


def moments(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tamper:
    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, MeasureReply)
        return [replace(answer, moments=change(dict(answer.moments)))] if answer.client == 0 else [answer]

    return tamper


def narrow(_: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics that hold together but belong to a model of two features."""
    return {
        "counts": torch.tensor([1, 0]),
        "gram": torch.tensor([2**40, 0, 0]),
        "cross": torch.tensor([[2**20, 0, 0], [0, 0, 0]]),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"gram": 2 * m["gram"]},
        lambda m: m | {"gram": m["gram"].double()},
        lambda m: m | {"cross": m["cross"][:, :-1]},
        lambda m: {},
        narrow,
    ],
)
def test_forged_moments_are_refused_and_the_others_solved(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    """Client 0 answers first, so that its shapes must not become everybody's."""
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    got = calibrated(assembly, Tampered(fleet, moments(change)), model)
    rest = calibrated(assembly, Only(fleet, [1, 2, 3]), model)
    assert got.model.digest() == rest.model.digest()
    assert [(r.round, r.client) for r in got.refused] == [(3, 0)]


def test_a_calibration_that_nobody_answers_is_an_error() -> None:
    assembly = assembled()
    model, fleet = assembly.initial(), in_process(assembly)
    with pytest.raises(FederationError, match="calibration"):
        calibrated(assembly, Tampered(fleet, lambda a: [Failure(a.client, "no")]), model)


def test_calibration_over_clients_equals_calibration_on_the_pooled_data() -> None:
    from spherefed.calibration.ffc import statistics

    assembly = assembled()
    model = assembly.initial()
    got = calibrated(assembly, in_process(assembly), model, Ffc(ridge=0.1))
    assembly.bench.lay(model)
    train = assembly.dataset.train
    # One batch per client, as clients cut them: an encoder may give other bits for other batch sizes.
    batches = [(train.inputs[part], train.labels[part]) for part in assembly.partition.parts]
    pooled = statistics(assembly.bench.classifier, batches).solve(0.1)
    assert got.model.head is not None
    assert torch.equal(got.model.head["weight"], pooled.weight.float())
    assert got.facts == pooled.facts()


def test_counts_of_held_out_examples_are_checked() -> None:
    from spherefed.experiment import Data

    assembly = assembled(data=Data(held_out=0.3))
    model, fleet = assembly.initial(), in_process(assembly)

    def tamper(answer: Reply | Failure) -> list[Reply | Failure]:
        assert isinstance(answer, EvaluateReply)
        return [replace(answer, correct=answer.num_examples + 1)] if answer.client == 2 else [answer]

    honest = evaluate_on_clients(fleet, model, 3)
    got = evaluate_on_clients(Tampered(fleet, tamper), model, 3)
    assert got.counts == tuple(c for i, c in enumerate(honest.counts) if i != 2)
    assert [r.client for r in got.refused] == [2]
    assert sum(c.total for c in honest.counts) == sum(int(len(p) * 0.3) for p in assembly.partition.parts)


def test_a_plan_says_what_the_experiment_says() -> None:
    assembly = assembled(cohort=3, seed=5)
    assert assembly.plan() == Plan(rounds=3, lr=0.5, schedule=Cosine(), cohort=3, algorithm=fedavg(), seed=5)
