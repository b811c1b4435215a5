"""Which replies count. Every rejected reply is recorded with its client and cause.

The same checks serve every engine: a reply from a process on this machine is trusted no more than a remote one. For
`validate`, any object is either a reply that counts or a recorded rejection, never an exception.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, hypot
from statistics import median
from typing import Any, Generic, TypeVar, cast, get_args

from spherefed.errors import FederationError, SpherefedError
from spherefed.messages import EvaluateReply, MeasureReply, ReestimateReply, Reply, Request, Traffic, TrainReply
from spherefed.server.reply_checks import Checked, ReplyLimits, check_reply

R = TypeVar("R", TrainReply, MeasureReply, ReestimateReply, EvaluateReply)

MAX_SHOWN = 5
"""Number of rejections that an error message names."""
MAX_CAUSE = 1000
"""Bytes of a cause that are kept."""
DIVERGED = ("loss is nan", "loss is inf", "is not finite", "update norm")
"""Parts of the causes that a training with too large a learning rate leads to."""
OUTLIER_RATIO = 100.0
"""A client moves the model far more than the others if n_k‖Δ_k‖₂ is beyond this multiple of the median. Below it, a
training that diverges has too high a rate: with skewed data, honest clients reach 10."""
UNKNOWN_CLIENT = -1
"""Recorded for an answer that does not say whose it is."""


def min_replies(quorum: float, num_asked: int) -> int:
    """How many replies are enough; 0.28 of 25 is 7, whatever the float product is.

    >>> min_replies(0.28, 25), min_replies(0.5, 3), min_replies(0.0, 4)
    (7, 2, 0)
    """
    return ceil(quorum * num_asked - 1e-9)


@dataclass(frozen=True, slots=True)
class Rejection:
    """One line of `rejections.jsonl`. The cause may come from a client, so it is cut to 1 kB of printable text."""

    round: int
    client: int
    cause: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", printable(self.cause))


def printable(text: object) -> str:
    """At most 1 kB of it on one line, without characters that a terminal would obey.

    >>> printable("no data" + chr(10) + chr(27) + "[2J")
    'no data  [2J'
    """
    shown = "".join(each if each.isprintable() else " " for each in str(text)[:MAX_CAUSE])
    return shown.encode("utf-8", "replace")[:MAX_CAUSE].decode("utf-8", "ignore")


class ReplyLog(Generic[R]):
    """The answers to one request: which of them count, which were rejected and why, and the bytes of all of them."""

    def __init__(
        self, kind: type[R], request: Request, asked: Sequence[int], limits: ReplyLimits | None = None
    ) -> None:
        self.accepted: list[int] = []
        """Clients whose reply counts."""
        self.examples: dict[int, int] = {}
        """Examples that each of them claims."""
        self.norms: dict[int, float] = {}
        """‖Δ_k‖₂ of each of them that has examples, for training."""
        self.rejected: list[Rejection] = []
        self.traffic = Traffic()
        self.request, self.limits = request, limits or ReplyLimits()
        self._kind: type[Reply] = kind
        self._part_norms: dict[int, Mapping[str, float]] = {}
        """Norms of delta, buffers and extra of each accepted reply to a training request."""
        self._too_long: set[int] = set()
        """Clients that were rejected in comparison with the round before only."""
        self._grown: set[int] = set()
        """Those of them that count again, because they were too many."""
        self.asked = asked
        """Clients to ask now, in this order."""
        self._waiting, self._wrong_round, self._all = set(asked), set[int](), set(asked)
        self.traffic.sent(asked, request)

    def validate(self, answer: object) -> R | None:
        """The reply if it counts; otherwise None, and the cause is recorded."""
        try:
            checked = check_reply(answer, self._kind, self.request, self.limits)
        except Exception as error:  # an answer may be any object, and nothing it does may end the run
            checked = Checked(f"cannot be checked: {_described(error)}")
        if checked.fault is not None or (client := cast(R, answer).client) not in self._waiting:
            self._reject_answer(answer, checked)
            return None
        reply = cast(R, answer)
        self._waiting.discard(client)
        self.traffic.received(client, reply)
        self.accepted.append(client)
        self.examples[client] = reply.num_examples
        if checked.norms and reply.num_examples:
            self.norms[client], self._part_norms[client] = checked.norms["delta"], checked.norms
        return reply

    def _reject_answer(self, answer: object, checked: Checked) -> None:
        """Record why this answer does not count: what the checks found, or that nobody waits for it."""
        client, cause = _whole(answer, "client", UNKNOWN_CLIENT), checked.fault
        if client not in self._waiting:
            cause = "was not asked" if client not in self._all else "answered twice"
        elif checked.too_long:
            self._too_long.add(client)
        assert cause is not None
        is_reply = type(answer) in get_args(Reply)  # isinstance would ask the object itself
        if is_reply and _whole(answer, "round", self.request.round) != self.request.round:
            self._wrong_round.add(client)  # an answer to another round: the right one may still come
        else:
            self._waiting.discard(client)
        if is_reply and client != UNKNOWN_CLIENT:
            self.traffic.received(client, cast(Reply, answer))
        self.rejected.append(Rejection(self.request.round, client, cause))

    def reject(self, client: int, cause: str) -> None:
        """Reject a reply that was accepted before."""
        self.accepted.remove(client)
        for known in (self.examples, self.norms, self._part_norms):
            cast(dict[int, Any], known).pop(client, None)
        self.rejected.append(Rejection(self.request.round, client, cause))

    def reject_largest(self, cause: str) -> None:
        """Reject the accepted reply with the largest norm of all its tensors."""
        self.reject(max(self._part_norms, key=lambda client: hypot(*self._part_norms[client].values())), cause)

    def outlier(self, weigh_examples: bool) -> int | None:
        """The client that moves the model most, if that is far more than the median client does."""
        moved = {c: norm * (self.examples[c] if weigh_examples else 1) for c, norm in self.norms.items()}
        most = max(moved, key=moved.__getitem__)
        return most if moved[most] > OUTLIER_RATIO * median(moved.values()) else None

    def most_diverged(self) -> bool:
        """Whether more than half of all clients sent what a diverging training leads to, or far longer updates."""
        diverged = {line.client for line in self.rejected if _is_divergence(line)} | self._grown
        return 2 * len(diverged) > len(self._all)

    def leave_out(self, client: int, cause: str) -> None:
        """Do not ask this client, and record why; for before the first answer."""
        self.asked = [each for each in self.asked if each != client]
        self._waiting.discard(client)
        self.rejected.append(Rejection(self.request.round, client, cause))

    def reject_outliers(self) -> bool:
        """Reject replies whose norm is far above the median of this round; whether the round has to be repeated.

        With them the model would stay finite, but training could not go on from it. If most replies were rejected in
        comparison with the round before, that comparison is wrong and not the clients: then they are asked again.
        """
        if len(self._too_long) > len(self.accepted):
            self._accept_grown()
            return True
        outliers: dict[int, tuple[str, float, float]] = {}
        for what in ("delta", "buffers", "extra"):
            norms = {client: parts.get(what, 0.0) for client, parts in self._part_norms.items()}
            limit = self.limits.max_ratio * (median(norms.values()) if norms else 0.0)
            outliers |= {c: (what, norm, limit) for c, norm in norms.items() if 0 < limit < norm}
        for client, (what, norm, limit) in outliers.items():
            self.reject(client, f"norm {norm:.4g} of its {what} is above the limit {limit:.4g} by this round's median")
        return bool(outliers)

    def _accept_grown(self) -> None:
        self.limits = replace(self.limits, max_norm=self.limits.max_absolute_norm)
        self._grown |= self._too_long
        self.rejected = [line for line in self.rejected if line.client not in self._too_long]
        self.accepted = [client for client in self.asked if client in {*self.accepted, *self._too_long}]

    def repeat(self) -> None:
        """Ask the accepted clients again, and only them: a client answers a repeated request alike."""
        self._record_missing()
        self.asked, self._waiting, self._wrong_round = self.accepted, set(self.accepted), set()
        self.traffic.sent(self.asked, self.request)
        self.accepted, self.examples, self.norms, self._part_norms, self._too_long = [], {}, {}, {}, set()

    def close(self, what: str, quorum: float = 0.0) -> None:
        """Record missing answers; raise a FederationError if too few replies count."""
        if self._waiting:
            self._record_missing()
        if self.rejected:
            self._check_enough(what, quorum)

    def _check_enough(self, what: str, quorum: float) -> None:
        causes = "; ".join(f"client {line.client}: {line.cause}" for line in self.rejected[:MAX_SHOWN])
        if len(self.rejected) > MAX_SHOWN:
            causes += f"; and {len(self.rejected) - MAX_SHOWN} more"
        if not self.accepted:
            raise FederationError(f"{what}: no client gave a usable reply; {causes}{self._advice()}")
        if len(self.accepted) < (least := min_replies(quorum, len(self._all))):
            raise FederationError(
                f"{what}: {len(self.accepted)} of {len(self._all)} clients gave a usable reply, quorum {quorum:g} "
                f"needs {least}; {causes}; --resume repeats this"
            )

    def _advice(self) -> str:
        """What to do if every client's training diverged."""
        lr = getattr(self.request, "lr", None)
        if lr is None or not all(map(_is_divergence, self.rejected)):
            return ""
        return (
            f"; the training diverged at every client: lower local.lr, whose value in this round is {lr:g}; if that "
            "does not help, check that encoder and loss are finite for your data"
        )

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """An error that ends the block carries the rejections, so that they can be recorded."""
        try:
            yield
        except SpherefedError as error:
            error.rejected = self.rejected
            raise

    def _record_missing(self) -> None:
        missing = sorted(self._waiting - self._wrong_round)
        self.rejected.extend(Rejection(self.request.round, client, "did not answer") for client in missing)
        self._waiting = set()


def _is_divergence(line: Rejection) -> bool:
    return any(sign in line.cause for sign in DIVERGED)


@contextmanager
def reply_log(
    kind: type[R], request: Request, asked: Sequence[int], limits: ReplyLimits | None = None
) -> Iterator[ReplyLog[R]]:
    """A `ReplyLog`; an error that ends the block carries the rejections, so that they can be recorded."""
    replies = ReplyLog(kind, request, asked, limits)
    with replies.in_errors():
        yield replies


def _whole(answer: object, name: str, default: int) -> int:
    """A whole number among the attributes of any object."""
    try:
        value = getattr(answer, name, default)
    except Exception:  # a property of a foreign class
        return default
    return value if type(value) is int else default


def _described(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
