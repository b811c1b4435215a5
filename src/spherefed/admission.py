"""What a reply must be to be counted. Whatever is refused is recorded with its client and cause.

The same checks serve every engine: a reply from a process on this machine is trusted no more than one from far away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import TypeVar, cast

from spherefed.batch_statistics import moments_fault
from spherefed.errors import FederationError
from spherefed.messages import (
    EvaluateReply,
    Failure,
    MeasureReply,
    ReestimateReply,
    Reply,
    Request,
    Traffic,
    Train,
    TrainReply,
)
from spherefed.tensors import mismatch, non_finite

R = TypeVar("R", TrainReply, MeasureReply, ReestimateReply, EvaluateReply)


SHOWN = 5
"""Refusals that an error names."""
MOST_EXAMPLES = 1 << 31
FEWEST_STEPS, MOST_STEPS = 1e-6, 1e12
"""What a client may claim: more, and its weight in the average, or its inverse, would not be a number."""


def needed(quorum: float, num_asked: int) -> int:
    """How many replies are enough; 0.28 of 25 is 7, whatever the product of floats is.

    >>> needed(0.28, 25), needed(0.5, 3), needed(0.0, 4)
    (7, 2, 0)
    """
    return ceil(quorum * num_asked - 1e-9)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line of the run's ledger."""

    round: int
    client: int
    cause: str


@dataclass(slots=True)
class Tally:
    """What becomes of the answers to one request, filled while they stream by."""

    admitted: list[int] = field(default_factory=list)
    """Clients whose reply counts."""
    refused: list[Refusal] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def refuse(self, round_index: int, client: int, cause: str) -> None:
        """Take back an admission that a closer look does not bear out."""
        self.admitted.remove(client)
        self.refused.append(Refusal(round_index, client, cause))

    def check_answered(self, when: str, quorum: float = 0.0) -> None:
        """A request that was refused or failed everywhere, or by too many, ends the run."""
        if not self.refused:
            return
        causes = "; ".join(f"client {line.client}: {line.cause}" for line in self.refused[:SHOWN])
        if len(self.refused) > SHOWN:
            causes += f"; and {len(self.refused) - SHOWN} more"
        num_asked = len(self.traffic.down)
        if not self.admitted:
            raise FederationError(f"{when}: no client gave a usable reply; {causes}")
        if len(self.admitted) < needed(quorum, num_asked):
            raise FederationError(
                f"{when}: {len(self.admitted)} of {num_asked} clients gave a usable reply, quorum {quorum:g} needs "
                f"{needed(quorum, num_asked)}; {causes}; --resume repeats this"
            )


def admit(
    answers: Iterator[Reply | Failure], kind: type[R], request: Request, asked: Sequence[int], tally: Tally
) -> Iterator[R]:
    """Let through the replies that count, one per client; the tally says whose they were, and why others were not."""
    admitted, refused, traffic = tally.admitted, tally.refused, tally.traffic
    expected = set(asked)
    waiting = set(asked)
    late: set[int] = set()
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
            admitted.append(answer.client)
            yield cast(R, answer)
        if isinstance(answer, Failure) or answer.round == request.round:
            waiting.discard(answer.client)
        else:  # an answer to another round: the right one may still come
            late.add(answer.client)
    refused.extend(Refusal(request.round, client, "did not answer") for client in sorted(waiting - late))


def _fault(reply: Reply, kind: type[Reply], request: Request) -> str | None:
    if not isinstance(reply, kind):
        return f"answered with a {type(reply).__name__}, expected a {kind.__name__}"
    if reply.round != request.round:
        return f"answered round {reply.round} in round {request.round}"
    if not 0 <= reply.num_examples < MOST_EXAMPLES:
        return f"claims {reply.num_examples} examples"
    return _content_fault(reply, request)


def _content_fault(reply: Reply, request: Request) -> str | None:
    match reply:
        case TrainReply():
            assert isinstance(request, Train)
            return _train_fault(reply, request)
        case MeasureReply():
            return f"{name!r} is not finite" if (name := non_finite(reply.moments)) else None
        case ReestimateReply():
            return moments_fault(reply.moments, request.model.buffers)
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
    steps = reply.effective_steps
    if not isfinite(steps) or (reply.num_examples and not FEWEST_STEPS < steps < MOST_STEPS):
        return f"claims {reply.effective_steps} effective steps"
    return None
