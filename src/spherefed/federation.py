"""The round loop, written once against the small `Fleet` protocol; engines carry messages and know no algorithm.

The loop yields a record per round and takes no callbacks: progress, checkpoints and early stopping are the caller's
`for` body.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spherefed.admission import Refusal, admit
from spherefed.algorithms import Algorithm, combine
from spherefed.batch_statistics import no_moments, pooled_statistics
from spherefed.calibration import Calibration, Context, Fact
from spherefed.errors import CalibrationError, FederationError
from spherefed.evaluation import Counts
from spherefed.messages import (
    LEARNED_HEAD,
    Evaluate,
    EvaluateReply,
    Failure,
    Measure,
    MeasureReply,
    ModelState,
    Reestimate,
    ReestimateReply,
    Reply,
    Request,
    Traffic,
    Train,
    TrainReply,
)
from spherefed.rng import Purpose, stream
from spherefed.schedules import Schedule
from spherefed.tensors import Tensors


class Fleet(Protocol):
    """Where clients live: the only thing an engine has to provide."""

    @property
    def clients(self) -> Sequence[int]: ...

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Answers in the order asked, streaming; a failure names its client and cause."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the server does from the first round to the last."""

    rounds: int
    lr: float
    schedule: Schedule
    cohort: int | None
    """Clients per round; None: all of them."""
    algorithm: Algorithm
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: the model it led to, what the server remembers, and what happened."""

    index: int
    lr: float
    model: ModelState
    memory: Tensors
    """The server optimiser's and the correction's own, empty for plain averaging."""
    num_examples: int
    loss: float
    clients: tuple[int, ...]
    refused: tuple[Refusal, ...]
    traffic: Traffic
    consistency: dict[str, float] | None = None
    """SphereFed, Eq. 2 and 3: how far the clients' learned heads agree; None if heads are fixed or not shared."""


def federate(
    fleet: Fleet, model: ModelState, plan: Plan, *, start: int = 0, memory: Tensors | None = None
) -> Iterator[Round]:
    """Rounds `start` to the last, each yielded when it is over.

    Going on from a yielded round's index + 1, model and memory gives the same rounds to the bit.
    """
    memory = memory or {}
    for t in range(start, plan.rounds):
        request = opening(plan, t, model, memory)
        chosen = sample(fleet.clients, plan.cohort, stream(plan.seed, Purpose.COHORT, t))
        admitted: list[int] = []
        refused: list[Refusal] = []
        traffic = Traffic()
        answers = fleet.ask(chosen, request)
        replies = admit(answers, TrainReply, request, chosen, admitted=admitted, refused=refused, traffic=traffic)
        rule = plan.algorithm
        head = model.params.get(LEARNED_HEAD)
        combined = combine(replies, normalize_steps=rule.normalize_steps, weigh=rule.weigh, head=head)
        _check_answered(admitted, refused, f"round {t}")
        if combined is None:  # a cohort without a single example moves nothing
            yield Round(t, request.lr, model, memory, 0, 0.0, tuple(admitted), tuple(refused), traffic)
            continue
        update, memory = rule.step(combined, memory, len(fleet.clients))
        model = model.moved(update, combined.buffers)
        yield Round(
            index=t,
            lr=request.lr,
            model=model,
            memory=memory,
            num_examples=combined.num_examples,
            loss=combined.loss,
            clients=combined.clients,
            refused=tuple(refused),
            traffic=traffic,
            consistency=combined.consistency,
        )


def opening(plan: Plan, t: int, model: ModelState, memory: Tensors) -> Train:
    """What the server asks of clients in round t, given the model and its own memory from before."""
    lr = plan.lr * plan.schedule.factor(t, plan.rounds)
    return Train(t, model, lr, plan.algorithm.broadcast(model, memory))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The model with its new head, and how it was had."""

    model: ModelState
    facts: dict[str, Fact]
    refused: tuple[Refusal, ...]
    traffic: Traffic
    total: Tensors
    """The summed moments that the head was solved from."""


def calibrate(calibration: Calibration, fleet: Fleet, model: ModelState, context: Context) -> Calibrated:
    """Ask every client for its moments once, add them up while they arrive, solve for the head."""
    request = Measure(context.round, model)
    admitted: list[int] = []
    refused: list[Refusal] = []
    traffic = Traffic()
    total: Tensors | None = None
    answers = fleet.ask(fleet.clients, request)
    replies = admit(answers, MeasureReply, request, fleet.clients, admitted=admitted, refused=refused, traffic=traffic)
    for reply in replies:
        try:
            total = calibration.merge(total, reply.moments, context)
        except CalibrationError as error:
            admitted.remove(reply.client)
            refused.append(Refusal(context.round, reply.client, str(error)))
    _check_answered(admitted, refused, "calibration")
    assert total is not None
    solved = calibration.solve(total, context)
    calibrated = model.with_head(solved.weight.to(context.head.dtype))
    return Calibrated(calibrated, dict(solved.facts()), tuple(refused), traffic, total)


@dataclass(frozen=True, slots=True)
class Reestimated:
    """The model with the running statistics of all examples together."""

    model: ModelState
    refused: tuple[Refusal, ...]
    traffic: Traffic


def reestimate(fleet: Fleet, model: ModelState, round_index: int) -> Reestimated:
    """Ask every client once for the moments of its BatchNorm inputs, add them up, replace the running statistics."""
    request = Reestimate(round_index, model)
    admitted: list[int] = []
    refused: list[Refusal] = []
    traffic = Traffic()
    total = no_moments(model.buffers)
    answers = fleet.ask(fleet.clients, request)
    for reply in admit(
        answers, ReestimateReply, request, fleet.clients, admitted=admitted, refused=refused, traffic=traffic
    ):
        total = {name: moment + reply.moments[name] for name, moment in total.items()}
    _check_answered(admitted, refused, "re-estimation of running statistics")
    return Reestimated(model.with_buffers(pooled_statistics(total, model.buffers)), tuple(refused), traffic)


@dataclass(frozen=True, slots=True)
class LocalCounts:
    """Right answers on clients' own held-out examples."""

    clients: tuple[int, ...]
    counts: tuple[Counts, ...]
    refused: tuple[Refusal, ...]
    traffic: Traffic


def evaluate_on_clients(
    fleet: Fleet, model: ModelState, round_index: int, *, personalize: bool = False, extra: Tensors | None = None
) -> LocalCounts:
    """Ask every client how many of its held-out examples the model, or what it makes of it, gets right."""
    request = Evaluate(round_index, model, personalize, extra or {})
    refused: list[Refusal] = []
    traffic = Traffic()
    answers = fleet.ask(fleet.clients, request)
    replies = admit(answers, EvaluateReply, request, fleet.clients, admitted=[], refused=refused, traffic=traffic)
    counts = {r.client: Counts(r.correct, r.num_examples) for r in replies}
    return LocalCounts(tuple(counts), tuple(counts.values()), tuple(refused), traffic)


def sample(clients: Sequence[int], cohort: int | None, rng: np.random.Generator) -> Sequence[int]:
    """A uniform random cohort in ascending order; its cost does not grow with the clients that sit idle."""
    if cohort is None or cohort >= len(clients):
        return clients
    chosen = rng.choice(len(clients), size=cohort, replace=False, shuffle=False)
    return [clients[position] for position in sorted(chosen.tolist())]


def _check_answered(admitted: Sequence[int], refused: Sequence[Refusal], when: str) -> None:
    if refused and not admitted:
        first = refused[0]
        raise FederationError(f"{when}: no client gave a usable reply; client {first.client}: {first.cause}")
