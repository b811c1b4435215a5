"""What the server collects from every client once, beside the rounds: statistics for a new head, evaluations.

Each is one request to all clients; answers are added up while they stream in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median_low

from spherefed.acceleration.memory_reuse import give_back_freed_memory
from spherefed.calibration import Calibration, Context, Solved, SummaryValue
from spherefed.client.batch_statistics import input_sizes, inputs_per_example, no_moments, pooled_statistics
from spherefed.client.evaluation import Counts
from spherefed.errors import CalibrationError, NothingMeasuredError
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
from spherefed.rng import Purpose, torch_stream
from spherefed.server.federation import Fleet
from spherefed.server.reply_checks import ReplyLimits
from spherefed.server.validation import Rejection, ReplyLog, reply_log
from spherefed.tensors import Tensors

UNLIMITED = 2**62
MAX_CULPRITS = 5
"""If a solve fails without so many clients too, it is not the fault of single clients."""
MAX_INPUTS_RATIO = 2.0
"""Largest number of inputs per example of a layer, as a multiple of the median; a client may drop half its examples."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The model with its new head, and a summary of the solve."""

    model: ModelState
    summary: dict[str, SummaryValue]
    rejected: tuple[Rejection, ...]
    traffic: Traffic
    total: Tensors
    """The summed moments that the head was solved from."""
    clients: tuple[int, ...]
    """The clients whose moments they are."""


def calibrate(
    calibration: Calibration,
    fleet: Fleet,
    model: ModelState,
    context: Context,
    *,
    quorum: float = 0.0,
    limits: ReplyLimits | None = None,
    keep: Callable[[int, Tensors], None] | None = None,
) -> Calibrated:
    """Ask every client for its moments once, add them up while they arrive, solve for the head.

    If the solve fails although every part passed its checks, the client that makes it fail is found by bisection,
    rejected, and left out. Clients are asked again for that: the server keeps no client's moments. `keep` is called
    with a client and its moments when they are added; a client in `rejected` was left out afterwards.
    """
    num_culprits = 0
    with reply_log(MeasureReply, Measure(context.round, model), fleet.clients, limits) as replies:
        while True:
            total = _collect_moments(calibration, fleet, replies, context, keep)
            replies.close("calibration", quorum)
            assert total is not None
            try:
                solved = _solved(calibration, total, context)
                break
            except NothingMeasuredError:
                raise
            except CalibrationError as error:
                if num_culprits == MAX_CULPRITS or len(replies.accepted) == 1:
                    raise
                num_culprits += 1
                culprit = _culprit(calibration, fleet, replies, context)
                replies.reject(culprit, f"with its moments, calibration fails: {error}")
                replies.repeat()
    summary = dict(solved.summary())
    calibrated = model.with_head(solved.weight.to(context.head.dtype))
    return Calibrated(calibrated, summary, tuple(replies.rejected), replies.traffic, total, tuple(replies.accepted))


def _collect_moments(
    calibration: Calibration,
    fleet: Fleet,
    replies: ReplyLog[MeasureReply],
    context: Context,
    keep: Callable[[int, Tensors], None] | None = None,
) -> Tensors | None:
    """The summed moments of all clients whose part is valid.

    If together they claim more examples than the sum can hold, the largest are rejected and the others are asked again.
    """
    # A user's calibration need not limit its examples.
    capacity: float = getattr(calibration, "capacity", math.inf)
    while True:
        total, claims, room = None, dict[int, int](), capacity
        for answer in fleet.ask(replies.asked, replies.request):
            reply = replies.validate(answer)
            if reply is None:
                continue
            try:
                claimed = _claimed(calibration, reply)
                merged = calibration.merge(total if claimed <= room else None, reply.moments, context)
            except Exception as error:  # whatever a client sent
                known = isinstance(error, CalibrationError)
                replies.reject(reply.client, str(error) if known else f"{type(error).__name__}: {error}")
                continue
            if keep is not None:
                keep(reply.client, reply.moments)
            claims[reply.client] = claimed
            total = merged if claimed <= room else total
            room -= claimed
            del answer, reply, merged  # moments can be large, and the next client needs memory for its own
        if room >= 0:
            give_back_freed_memory()  # to the solve
            return total
        for client in _largest(claims, -room):
            replies.reject(client, f"claims {claims[client]} examples, and all clients together may have {capacity}")
        replies.repeat()


def _claimed(calibration: Calibration, reply: MeasureReply) -> int:
    """Examples that the moments are of; those of the reply if a user's own calibration does not say."""
    count: Callable[[Tensors], int] | None = getattr(calibration, "num_examples", None)
    claimed = reply.num_examples if count is None else count(reply.moments)
    if not 0 <= claimed <= reply.num_examples:
        raise CalibrationError(f"moments of {claimed} examples in a reply that claims {reply.num_examples}")
    return claimed


def _largest(claims: dict[int, int], excess: float) -> list[int]:
    """The clients with the largest claims, until they claim this excess together."""
    chosen: list[int] = []
    for client in sorted(claims, key=lambda client: (-claims[client], client)):
        if sum(claims[one] for one in chosen) >= excess:
            break
        chosen.append(client)
    return chosen


def _solved(calibration: Calibration, total: Tensors, context: Context) -> Solved:
    """The head; a head that is not finite, or a solve that does not converge, is a CalibrationError too."""
    try:
        with torch_stream(context.seed, Purpose.SOLVE, context.round % 2**32):  # BEFORE_TRAINING is negative
            solved = calibration.solve(total, context)
    except RuntimeError as error:  # of torch.linalg
        raise CalibrationError(f"the head cannot be computed: {error}") from error
    if not bool(solved.weight.isfinite().all()):
        raise CalibrationError("the head cannot be computed: its weight is not finite")
    return solved


def _culprit(calibration: Calibration, fleet: Fleet, replies: ReplyLog[MeasureReply], context: Context) -> int:
    """The last client of the shortest leading part of the cohort whose solve fails, in log₂ K further requests."""
    clients = list(replies.accepted)
    solvable, failing = 0, len(clients)
    while failing - solvable > 1:
        middle = (solvable + failing) // 2
        part = ReplyLog(MeasureReply, replies.request, clients[:middle], replies.limits)
        total = _collect_moments(calibration, fleet, part, context)
        replies.traffic.add(part.traffic)
        try:
            if total is not None:
                _solved(calibration, total, context)
            solvable = middle
        except NothingMeasuredError:
            solvable = middle
        except CalibrationError:
            failing = middle
    return clients[failing - 1]


@dataclass(frozen=True, slots=True)
class Reestimated:
    """The model with the running statistics of all examples together."""

    model: ModelState
    rejected: tuple[Rejection, ...]
    traffic: Traffic


def reestimate(
    fleet: Fleet, model: ModelState, round_index: int, *, quorum: float = 0.0, limits: ReplyLimits | None = None
) -> Reestimated:
    """Ask every client for the moments of its BatchNorm inputs, add them up, replace the running statistics.

    If some clients' moments are far larger than those of most, clients are asked again, without them.
    """
    request = Reestimate(round_index, model)
    with reply_log(ReestimateReply, request, fleet.clients, limits) as replies:
        while True:
            total = no_moments(model.buffers)
            per_example, sizes = dict[int, dict[str, float]](), dict[int, dict[str, float]]()
            for answer in fleet.ask(replies.asked, request):
                reply = replies.validate(answer)
                if reply is not None:
                    total = {name: moment + reply.moments[name] for name, moment in total.items()}
                    per_example[reply.client] = inputs_per_example(reply.moments, reply.num_examples)
                    sizes[reply.client] = input_sizes(reply.moments)
            too_large = _far_larger("inputs per example", per_example, MAX_INPUTS_RATIO)
            too_large |= _far_larger("size of inputs", sizes, replies.limits.max_ratio)
            if not too_large:
                break
            for client, cause in too_large.items():
                replies.reject(client, cause)
            replies.repeat()
        replies.close("re-estimation of running statistics", quorum)
    statistics = pooled_statistics(total, model.buffers)
    return Reestimated(model.with_buffers(statistics), tuple(replies.rejected), replies.traffic)


def _far_larger(what: str, values: Mapping[int, Mapping[str, float]], max_ratio: float) -> dict[int, str]:
    """Clients for which a layer's value is more than so many times the median over clients, and why."""
    found: dict[int, str] = {}
    for layer in dict.fromkeys(layer for of_client in values.values() for layer in of_client):
        known = {client: of_client[layer] for client, of_client in values.items() if layer in of_client}
        limit = max_ratio * median_low(known.values())
        for client, value in known.items():
            if 0 < limit < value:
                found[client] = f"{what} of {layer!r}: {value:.4g} is above the limit {limit:.4g} by the median"
    return found


@dataclass(frozen=True, slots=True)
class LocalCounts:
    """Correct answers on clients' own held-out examples."""

    clients: tuple[int, ...]
    counts: tuple[Counts, ...]
    rejected: tuple[Rejection, ...]
    traffic: Traffic


def evaluate_on_clients(
    fleet: Fleet,
    model: ModelState,
    round_index: int,
    *,
    personalize: bool = False,
    extra: Tensors | None = None,
    num_classes: int,
    quorum: float = 0.0,
    limits: ReplyLimits | None = None,
) -> LocalCounts:
    """Ask every client how many of its held-out examples the model, or its personalised model, classifies correctly."""
    request = Evaluate(round_index, model, personalize, extra or {})
    counts: dict[int, Counts] = {}
    with reply_log(EvaluateReply, request, fleet.clients, limits) as replies:
        for answer in fleet.ask(fleet.clients, request):
            reply = replies.validate(answer)
            if reply is None:
                continue
            by_class = reply.classes.get("counts")
            if by_class is None or by_class.shape[1] == num_classes:
                counts[reply.client] = Counts(reply.correct, reply.num_examples, by_class)
            else:
                replies.reject(reply.client, f"counts of {by_class.shape[1]} classes, the model has {num_classes}")
        replies.close("evaluation at the clients", quorum)
    return LocalCounts(tuple(counts), tuple(counts.values()), tuple(replies.rejected), replies.traffic)
