"""What a reply must be to be counted. Whatever is refused is recorded with its client and cause.

The same checks serve every engine: a reply from a process on this machine is trusted no more than one from far away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar, cast

from spherefed.messages import EvaluateReply, Failure, MeasureReply, Reply, Request, Traffic, Train, TrainReply
from spherefed.tensors import mismatch, non_finite

R = TypeVar("R", TrainReply, MeasureReply, EvaluateReply)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line of the run's ledger."""

    round: int
    client: int
    cause: str


def admit(
    answers: Iterator[Reply | Failure],
    kind: type[R],
    request: Request,
    asked: Sequence[int],
    *,
    refused: list[Refusal],
    traffic: Traffic,
) -> Iterator[R]:
    """Let through the replies that count, one per client; the rest goes to `refused`."""
    expected = set(asked)
    waiting = set(asked)
    traffic.sent(asked, request)
    for answer in answers:
        cause = answer.cause if isinstance(answer, Failure) else _fault(answer, kind, request)
        if answer.client not in waiting:
            cause = "was not asked" if answer.client not in expected else "answered twice"
        if not isinstance(answer, Failure):
            traffic.received(answer.client, answer)
        if cause is not None:
            refused.append(Refusal(request.round, answer.client, cause))
        else:
            yield cast(R, answer)
        waiting.discard(answer.client)
    refused.extend(Refusal(request.round, client, "did not answer") for client in sorted(waiting))


def _fault(reply: Reply, kind: type[Reply], request: Request) -> str | None:
    if not isinstance(reply, kind):
        return f"answered with a {type(reply).__name__}, expected a {kind.__name__}"
    if reply.round != request.round:
        return f"answered round {reply.round} in round {request.round}"
    if reply.num_examples < 0:
        return f"claims {reply.num_examples} examples"
    match reply:
        case TrainReply():
            assert isinstance(request, Train)
            return _train_fault(reply, request)
        case MeasureReply():
            return f"{name!r} is not finite" if (name := non_finite(reply.moments)) else None
        case EvaluateReply():
            return None if 0 <= reply.correct <= reply.num_examples else f"claims {reply.correct} right answers"


def _train_fault(reply: TrainReply, request: Train) -> str | None:
    for what, given, expected in (
        ("delta", reply.delta, request.model.params),
        ("buffers", reply.buffers, request.model.buffers),
        ("extra", reply.extra, request.extra),
    ):
        if fault := mismatch(given, expected):
            return f"{what}: {fault}"
        if name := non_finite(given):
            return f"{what}: {name!r} is not finite"
    if not isfinite(reply.loss):
        return f"loss is {reply.loss}"
    if not (isfinite(reply.effective_steps) and (reply.effective_steps > 0 or reply.num_examples == 0)):
        return f"claims {reply.effective_steps} effective steps"
    return None
