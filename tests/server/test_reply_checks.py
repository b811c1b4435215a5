"""Finite replies that would end a run: they are rejected on arrival, and a model that is not finite is never kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from spherefed.api.inputs import recipe
from spherefed.assembly import assemble
from spherefed.calibration import Context, FedCof, Ffc
from spherefed.calibration.ffc import Accumulator
from spherefed.client.handle import Clients
from spherefed.client.training import LocalTraining, effective_steps
from spherefed.data.sources import digits
from spherefed.engines.local import InProcess
from spherefed.errors import CalibrationError, ConfigError, FederationError
from spherefed.experiment import Data, Model
from spherefed.messages import Failure, MeasureReply, ModelState, Request, TrainReply
from spherefed.nn.encoders import SmallNet
from spherefed.runs import runner
from spherefed.runs.round_log import Checkpoint, RoundLog, read_lines
from spherefed.server.algorithms import Algorithm, fedavg, fedopt, scaffold
from spherefed.server.collection import calibrate
from spherefed.server.federation import MEDIAN_NORM, Fleet, federate
from spherefed.server.optimizers import ServerSgd
from spherefed.server.reply_checks import Limits, ReplyLimits
from support.small import assembled, in_process


class Hostile:
    """A fleet in which some replies are changed."""

    def __init__(self, fleet: Fleet, change: Callable[[Any], Any], who: Sequence[int] = (1,)) -> None:
        self.fleet, self.clients, self.change, self.who = fleet, fleet.clients, change, who
        self.asked: list[int] = []

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        self.asked.append(len(clients))
        for answer in self.fleet.ask(clients, request):
            yield self.change(answer) if answer.client in self.who else answer


class Without:
    def __init__(self, fleet: Fleet, who: Sequence[int]) -> None:
        self.fleet, self.clients = fleet, [c for c in fleet.clients if c not in who]

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        return self.fleet.ask(clients, request)


def scaled(factor: float) -> Callable[[TrainReply], TrainReply]:
    return lambda reply: replace(reply, delta={n: factor * t for n, t in reply.delta.items()})


def norm_of(tensors: Any) -> float:
    return float(torch.cat([t.flatten().double() for t in tensors.values()]).square().sum().sqrt())


def test_an_update_above_the_absolute_limit_is_rejected_in_the_first_round() -> None:
    assembly = assembled(calibration=None)
    fleet, model = in_process(assembly), assembly.initial()
    longest = max(norm_of(reply.delta) for reply in fleet.ask(range(4), _request(assembly, model)))  # type: ignore[union-attr]
    for factor, limit, counts in ((1.0, 1.01 * longest, True), (1e3, 1.01 * longest, False), (1e30, 1e6, False)):
        plan = replace(assembly.plan(), limits=Limits(max_update_norm=limit))
        done = next(federate(Hostile(fleet, scaled(factor)), model, plan))
        assert (1 in done.clients) == counts
        if not counts:
            assert done.model.digest() == next(federate(Without(fleet, [1]), model, plan)).model.digest()
            assert "update norm" in done.rejected[0].cause


def _request(assembly: Any, model: ModelState) -> Request:
    from spherefed.server.federation import train_request

    return train_request(assembly.plan(), 0, model, {})


def test_later_rounds_compare_with_the_median_of_the_round_before() -> None:
    assembly = assembled(calibration=None)
    fleet, plan = in_process(assembly), replace(assembly.plan(), limits=Limits(max_norm_ratio=20.0))
    model = assembly.initial()
    first = next(federate(fleet, model, plan))
    norms = sorted(norm_of(r.delta) for r in fleet.ask(range(4), _request(assembly, model)))  # type: ignore[union-attr]
    assert float(first.server_state[MEDIAN_NORM]) == pytest.approx((norms[1] + norms[2]) / 2, rel=1e-5)
    again = federate(Hostile(fleet, scaled(1e4)), first.model, plan, start=1, server_state=first.server_state)
    assert [(line.client, line.round) for line in next(again).rejected] == [(1, 1)]
    alone = Hostile(fleet, scaled(1e4), who=range(4))  # nobody to compare with, neither before nor in the same round
    assert next(federate(alone, first.model, plan, start=1, server_state={})).rejected == ()


@pytest.mark.parametrize("algorithm", [fedavg(), scaffold()])
@pytest.mark.parametrize("field", ["delta", "buffers", "extra"])
def test_a_reply_far_above_the_median_of_its_own_round_is_rejected_in_round_0_too(
    algorithm: Algorithm, field: str
) -> None:
    given: dict[str, Any] = {}
    if field == "buffers":
        network = Model(encoder=SmallNet(norm="batch"))
        given = {"dataset": digits(), "data": Data(examples=80), "model": network, "local": LocalTraining(lr=0.01)}
    assembly = assembled(calibration=None, algorithm=algorithm, **given)
    fleet, model = in_process(assembly), assembly.initial()

    def long(reply: TrainReply) -> TrainReply:
        return replace(reply, **{field: {n: 1e5 * t for n, t in getattr(reply, field).items()}})

    hostile = Hostile(fleet, long, who=(3,))
    done = next(federate(hostile, model, assembly.plan()))
    if field == "extra" and algorithm.correction is None:
        assert done.rejected == ()
        return
    assert [(line.client, f"of its {field}" in line.cause) for line in done.rejected] == [(3, True)]
    assert done.model.digest() == next(federate(Without(fleet, [3]), model, assembly.plan())).model.digest()
    assert hostile.asked == [4, 3]


def test_if_most_replies_are_longer_than_the_round_before_allows_the_run_goes_on() -> None:
    """As after a round that a hostile client has moved as far as the limits allow: the others react to that."""
    assembly = assembled(calibration=None)
    fleet, model, plan = in_process(assembly), assembly.initial(), assembly.plan()
    tiny_median = {MEDIAN_NORM: torch.tensor(1e-9, dtype=torch.float64)}
    done = next(federate(fleet, model, plan, server_state=tiny_median))
    assert done.clients == (0, 1, 2, 3)
    assert done.rejected == ()
    assert done.model.digest() == next(federate(fleet, model, plan)).model.digest()
    absolute = replace(plan, limits=Limits(max_update_norm=1e-6))
    with pytest.raises(FederationError, match="no client gave a usable reply"):
        next(federate(fleet, model, absolute, server_state=tiny_median))


@pytest.mark.parametrize("scale", [3.0, 30.0, 300.0, 3e3, 3e4])
def test_one_hostile_reply_in_round_0_cannot_end_a_run(scale: float) -> None:
    """With the largest claim of examples, and any norm."""
    assembly = assembled(calibration=None, rounds=6)
    noise = torch.Generator().manual_seed(0)

    def attack(reply: TrainReply) -> TrainReply:
        if reply.round:
            return reply
        delta = {n: scale * torch.randn(t.shape, generator=noise) for n, t in reply.delta.items()}
        return replace(reply, delta=delta, num_examples=10**6)

    fleet = Hostile(in_process(assembly), attack)
    plan = replace(assembly.plan(), local=None)
    assert len(list(federate(fleet, assembly.initial(), plan))) == 6


class Poisoning(InProcess):
    """Client 3 claims all examples and moves the model as far as the limits allow in these rounds, then stays away."""

    def __init__(self, clients: Clients, rounds: Sequence[int], store: Any = None) -> None:
        super().__init__(clients, store)
        self.rounds = rounds

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        answers: list[Any] = list(super().ask(clients, request))
        norms = [norm_of(each.delta) for each in answers if isinstance(each, TrainReply)]
        for answer in answers:
            if answer.client != 3 or not isinstance(answer, TrainReply) or request.round < self.rounds[0]:
                yield answer
            elif request.round in self.rounds:
                factor = -0.95 * Limits().max_norm_ratio * median(norms) / norm_of(answer.delta)
                yield replace(scaled(factor)(answer), num_examples=Limits().max_examples)
            else:
                yield Failure(3, "gone")


@pytest.mark.parametrize("rounds", [(0,), (1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "scaffold",
        pytest.param("fedavg+ffc", marks=pytest.mark.slow),
        pytest.param("fednova", marks=pytest.mark.slow),
    ],
)
def test_a_reply_from_which_most_clients_diverge_is_undone_and_named(method: str, rounds: tuple[int, ...]) -> None:
    assembly = assemble(recipe("digits", method=method, rounds=6))
    fleet = Poisoning(assembly.clients, rounds)
    *_, last = done = list(federate(fleet, assembly.initial(), assembly.plan()))
    assert [each.index for each in done] == list(range(6))
    named = done[rounds[0] + 1]
    assert [(line.client, f"reply to round {rounds[0]}" in line.cause) for line in named.rejected] == [(3, True)]
    assert named.clients == (0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert last.loss < 0.7
    if rounds == (0,) and method == "fedavg":  # round 1 begins with the model before round 0, without that client
        again = federate(Without(fleet, [3]), assembly.initial(), assembly.plan(), start=1)
        assert next(again).model.digest() == named.model.digest()


def test_a_run_that_is_killed_before_a_hostile_round_is_undone_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = recipe("digits", method="scaffold", rounds=5)

    def make_fleet(assembly: Any, engine: Any, directory: Any, *_: Any) -> Poisoning:
        return Poisoning(assembly.clients, (1,), directory.client_states())

    monkeypatch.setattr(runner, "make_fleet", make_fleet)
    whole = runner.run_to_end(experiment, tmp_path / "whole")
    stopped = runner.run(experiment, tmp_path / "stopped")
    for progress in stopped:
        if progress.index == 1:
            break
    stopped.close()  # type: ignore[attr-defined]
    resumed = runner.run_to_end(experiment, tmp_path / "stopped", resume=True)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    for name in ("whole", "stopped"):
        lines = read_lines(tmp_path / name / "rejections.jsonl")
        assert [line["round"] for line in lines if "its reply to round 1" in line["cause"]] == [2]


def test_a_training_that_diverges_everywhere_blames_nobody() -> None:
    assembly = assemble(replace(recipe("digits", rounds=3), local=LocalTraining(lr=1e4, epochs=2)))
    with pytest.raises(FederationError, match=r"lower local\.lr") as error:
        list(federate(InProcess(assembly.clients), assembly.initial(), assembly.plan()))
    assert "moved the model" not in str(error.value)


def test_a_round_whose_model_is_not_finite_is_repeated_without_the_largest_reply() -> None:
    """An optimizer's step overflows although every reply is within its limits."""
    assembly = assembled(calibration=None, algorithm=fedopt(ServerSgd(lr=1e30)))
    fleet, model = in_process(assembly), assembly.initial()
    plan = replace(assembly.plan(), limits=Limits(max_update_norm=1e35, max_norm_ratio=1e30))
    hostile = Hostile(fleet, scaled(1e10), who=(2,))
    done = next(federate(hostile, model, plan))
    assert [(line.client, "not finite" in line.cause) for line in done.rejected] == [(2, True)]
    assert done.model.digest() == next(federate(Without(fleet, [2]), model, plan)).model.digest()
    assert hostile.asked == [4, 3]


def test_if_no_reply_leads_to_a_finite_model_the_round_fails_and_nothing_is_yielded() -> None:
    assembly = assembled(calibration=None, algorithm=fedopt(ServerSgd(lr=1e300)))
    with pytest.raises(FederationError, match="no client gave a usable reply"):
        next(federate(in_process(assembly), assembly.initial(), assembly.plan()))


@pytest.mark.parametrize("num_examples", [1, 7, 8, 9, 30])
def test_steps_are_bounded_by_a_loop_over_the_batches(num_examples: int) -> None:
    local = LocalTraining(lr=0.1, epochs=3, batch_size=8, momentum=0.9)
    steps = sum(1 for _ in range(3) for _ in range(0, num_examples, 8))
    assert ReplyLimits(local=local).most_steps(num_examples) == effective_steps(steps, momentum=0.9)


@pytest.mark.parametrize("wrong", [{"max_update_norm": 0.0}, {"max_norm_ratio": 0.5}, {"max_examples": 0}])
def test_limits_that_reject_everything_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="limits"):
        Limits(**wrong)


def test_more_examples_than_claimed_in_training_are_rejected() -> None:
    assembly = assembled()
    fleet, model = in_process(assembly), assembly.initial()
    context = assembly.context(model, 3)
    claims = {0: 23, 1: 10, 2: 22, 3: 10**9}
    done = calibrate(Ffc(), fleet, model, context, limits=Limits().of_measuring(claims))
    assert [line.client for line in done.rejected] == [1]
    expected = calibrate(Ffc(), Without(fleet, [1]), model, context)
    assert done.model.digest() == expected.model.digest()


def many_examples(num: int) -> Callable[[MeasureReply], MeasureReply]:
    """Statistics of so many equal examples, which only their number gives away."""

    def change(reply: MeasureReply) -> MeasureReply:
        accumulator = Accumulator(8, 3, torch.device("cpu"))
        accumulator.add(torch.eye(8)[:1], torch.tensor([0]))
        moments = {name: num * t for name, t in accumulator.total().tensors().items()}
        return replace(reply, num_examples=num, moments=moments)

    return change


def test_a_claim_that_exhausts_the_exact_sums_is_rejected_and_not_the_clients_after_it() -> None:
    assembly = assembled()
    fleet, model = in_process(assembly), assembly.initial()
    context, limits = assembly.context(model, 3), ReplyLimits(max_examples=2**23)
    hostile = Hostile(fleet, many_examples(2**23 - 10), who=(0,))
    done = calibrate(Ffc(), hostile, model, context, limits=limits)
    assert [line.client for line in done.rejected] == [0]
    assert done.model.digest() == calibrate(Ffc(), Without(fleet, [0]), model, context).model.digest()
    assert hostile.asked == [4, 3]


class FailsFor(Ffc):
    """A calibration whose solve fails if the sum holds a forbidden count of zero rows."""

    __slots__ = ()

    def solve(self, total: Any, context: Any) -> Any:
        if int(total["counts"][1]) >= 1:
            raise CalibrationError("forbidden")
        return super().solve(total, context)


@pytest.mark.parametrize("who", [(0,), (3,), (1, 2)])
def test_a_solve_that_fails_names_its_clients(who: tuple[int, ...]) -> None:
    assembly = assembled()
    fleet, model = in_process(assembly), assembly.initial()
    context = assembly.context(model, 3)

    def with_zero_row(reply: MeasureReply) -> MeasureReply:
        counts = reply.moments["counts"] + torch.tensor([0, 1])
        return replace(reply, num_examples=reply.num_examples + 1, moments={**reply.moments, "counts": counts})

    done = calibrate(FailsFor(), Hostile(fleet, with_zero_row, who), model, context)
    assert sorted(line.client for line in done.rejected) == list(who)
    assert all("forbidden" in line.cause for line in done.rejected)
    assert done.model.digest() == calibrate(Ffc(), Without(fleet, who), model, context).model.digest()


def test_a_solve_that_fails_for_everybody_raises_its_own_error() -> None:
    class Never(Ffc):
        __slots__ = ()

        def solve(self, total: Any, context: Any) -> Any:
            raise CalibrationError("never")

    assembly = assembled()
    model = assembly.initial()
    with pytest.raises(CalibrationError, match="never"):
        calibrate(Never(), in_process(assembly), model, assembly.context(model, 3))


def test_a_solve_that_fails_through_the_partition_blames_no_client() -> None:
    """No class is at two clients, so fedcof has no head; each client has done what it was asked for, once."""
    asked: list[int] = []

    class EveryClassAtOneClient:
        clients = range(8)

        def ask(self, clients: Any, request: Any) -> Any:
            for k in clients:
                asked.append(k)
                sums = torch.full((1, 5), 1000 * k)
                yield MeasureReply(k, 3, 4, {"classes": torch.tensor([k]), "counts": torch.tensor([4]), "sums": sums})

    context = Context(head=torch.zeros(8, 5), seed=0, round=3)
    with pytest.raises(CalibrationError, match="at least two clients") as end:
        calibrate(FedCof(), EveryClassAtOneClient(), ModelState({}, {}), context)
    assert not end.value.rejected
    assert asked == [*range(8)]


@pytest.mark.parametrize("how", ["infinite", "damaged"])
def test_the_older_checkpoint_is_used_and_the_log_says_so(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, good = RoundLog(tmp_path), ModelState({"encoder.w": torch.ones(2)}, {})
    log.save_checkpoint(Checkpoint(1, good, {}))
    newer = ModelState({"encoder.w": torch.full((2,), torch.inf if how == "infinite" else 2.0)}, {})
    log.save_checkpoint(Checkpoint(2, newer, {}))
    if how == "damaged":
        content = bytearray((tmp_path / "checkpoint-2.safetensors").read_bytes())
        content[-1] ^= 1
        (tmp_path / "checkpoint-2.safetensors").write_bytes(bytes(content))
    found = RoundLog(tmp_path).newest_checkpoint()
    assert found is not None
    assert (found.next_round, found.model.digest()) == (1, good.digest())
    assert "checkpoint-2.safetensors" in caplog.text
    assert "continues from the checkpoint before" in caplog.text
