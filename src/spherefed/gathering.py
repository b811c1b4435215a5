"""What the server asks of every client once, beside the rounds: moments for a new head, statistics, right answers.

Each is one request to all, answers added up while they stream in.
"""

from dataclasses import dataclass

from spherefed.admission import Refusal, Tally, admit
from spherefed.batch_statistics import no_moments, pooled_statistics
from spherefed.calibration import Calibration, Context, Fact
from spherefed.errors import CalibrationError
from spherefed.evaluation import Counts
from spherefed.federation import Fleet
from spherefed.messages import (
    Evaluate,
    EvaluateReply,
    Measure,
    MeasureReply,
    ModelState,
    Reestimate,
    ReestimateReply,
    Traffic,
)
from spherefed.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The model with its new head, and how it was had."""

    model: ModelState
    facts: dict[str, Fact]
    refused: tuple[Refusal, ...]
    traffic: Traffic
    total: Tensors
    """The summed moments that the head was solved from."""


def calibrate(
    calibration: Calibration, fleet: Fleet, model: ModelState, context: Context, *, quorum: float = 0.0
) -> Calibrated:
    """Ask every client for its moments once, add them up while they arrive, solve for the head."""
    request, tally = Measure(context.round, model), Tally()
    total: Tensors | None = None
    for reply in admit(fleet.ask(fleet.clients, request), MeasureReply, request, fleet.clients, tally):
        try:
            total = calibration.merge(total, reply.moments, context)
        except CalibrationError as error:
            tally.refuse(context.round, reply.client, str(error))
    tally.check_answered("calibration", quorum)
    assert total is not None
    solved = calibration.solve(total, context)
    calibrated = model.with_head(solved.weight.to(context.head.dtype))
    return Calibrated(calibrated, dict(solved.facts()), tuple(tally.refused), tally.traffic, total)


@dataclass(frozen=True, slots=True)
class Reestimated:
    """The model with the running statistics of all examples together."""

    model: ModelState
    refused: tuple[Refusal, ...]
    traffic: Traffic


def reestimate(fleet: Fleet, model: ModelState, round_index: int, *, quorum: float = 0.0) -> Reestimated:
    """Ask every client once for the moments of its BatchNorm inputs, add them up, replace the running statistics."""
    request, tally = Reestimate(round_index, model), Tally()
    total = no_moments(model.buffers)
    for reply in admit(fleet.ask(fleet.clients, request), ReestimateReply, request, fleet.clients, tally):
        total = {name: moment + reply.moments[name] for name, moment in total.items()}
    tally.check_answered("re-estimation of running statistics", quorum)
    statistics = pooled_statistics(total, model.buffers)
    return Reestimated(model.with_buffers(statistics), tuple(tally.refused), tally.traffic)


@dataclass(frozen=True, slots=True)
class LocalCounts:
    """Right answers on clients' own held-out examples."""

    clients: tuple[int, ...]
    counts: tuple[Counts, ...]
    refused: tuple[Refusal, ...]
    traffic: Traffic


def evaluate_on_clients(
    fleet: Fleet,
    model: ModelState,
    round_index: int,
    *,
    personalize: bool = False,
    extra: Tensors | None = None,
    quorum: float = 0.0,
) -> LocalCounts:
    """Ask every client how many of its held-out examples the model, or what it makes of it, gets right."""
    request, tally = Evaluate(round_index, model, personalize, extra or {}), Tally()
    replies = admit(fleet.ask(fleet.clients, request), EvaluateReply, request, fleet.clients, tally)
    counts = {r.client: Counts(r.correct, r.num_examples) for r in replies}
    tally.check_answered("evaluation at the clients", quorum)
    return LocalCounts(tuple(counts), tuple(counts.values()), tuple(tally.refused), tally.traffic)
