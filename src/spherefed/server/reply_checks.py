"""What is wrong with a reply: its form, its values, and what it claims beyond the limits of the experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from spherefed.client.batch_statistics import VARIANCE, moments_fault
from spherefed.client.training import LocalTraining, effective_steps
from spherefed.errors import ConfigError
from spherefed.messages import EvaluateReply, Failure, MeasureReply, ReestimateReply, Reply, Request, Train, TrainReply
from spherefed.tensors import non_finite, norm, not_plain, unlike

MIN_STEPS = 1 - 1e-6
"""Fewest effective steps of a client with examples: ‖a_k‖₁ of one step is 1."""
MAX_STEPS = 1e12
"""Most effective steps where local training is not known: beyond, weights would not be finite."""
MAX_LOSS = 1e100
"""Largest loss: sums over examples and clients stay finite."""
NUMBERS = (float, int)
"""Types of numbers in replies; bool is not among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on replies that the experiment sets. The defaults are far above what honest clients send."""

    max_update_norm: float = 1e6
    """Largest ‖Δ_k‖₂ of a client's update over all parameters."""
    max_norm_ratio: float = 1000.0
    """Largest ‖Δ_k‖₂ as a multiple of the median of the accepted updates, of the round before and of the same round."""
    max_examples: int = 10**6
    """Largest number of examples that a client may claim."""

    def __post_init__(self) -> None:
        if not (self.max_update_norm > 0 and self.max_norm_ratio >= 1 and self.max_examples >= 1):
            raise ConfigError(
                "limits: max_update_norm must be positive, max_norm_ratio and max_examples at least 1; "
                f"got {self.max_update_norm}, {self.max_norm_ratio} and {self.max_examples}"
            )

    def of_training(self, median_norm: Tensor | None, local: LocalTraining | None) -> "ReplyLimits":
        """The limits of one round; `median_norm` is that of the round before, None or 0 if there is none."""
        relative = self.max_norm_ratio * float(median_norm) if median_norm else inf
        most = min(self.max_update_norm, relative)
        return ReplyLimits(
            max_examples=self.max_examples,
            max_norm=most,
            max_absolute_norm=self.max_update_norm,
            max_ratio=self.max_norm_ratio,
            local=local,
        )

    def of_measuring(self, claims: Mapping[int, int]) -> "ReplyLimits":
        """The limits of statistics; `claims` are the examples that clients claimed in training."""
        return ReplyLimits(max_examples=self.max_examples, max_ratio=self.max_norm_ratio, claims=claims)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyLimits:
    """Limits on the replies to one request."""

    max_examples: int = Limits().max_examples
    max_norm: float = Limits().max_update_norm
    max_absolute_norm: float = Limits().max_update_norm
    """`max_norm` without the comparison with the round before."""
    max_ratio: float = Limits().max_norm_ratio
    """Largest norm of a delta, of buffers or of an extra as a multiple of the median of its round."""
    claims: Mapping[int, int] = field(default_factory=dict)
    """Examples that clients claimed in training; a client that is not listed is only bound by `max_examples`."""
    local: LocalTraining | None = None
    """How clients train, which bounds their number of steps; None: not known."""

    def most_examples(self, client: int) -> int:
        """How many examples this client may claim."""
        # With BatchNorm, a client with one example makes no step and claims none in training.
        return min(self.max_examples, max(self.claims.get(client, self.max_examples), 1))

    def most_steps(self, num_examples: int) -> float:
        """‖a_k‖₁ of FedNova if a client with so many examples uses all of them; a proximal term makes it smaller."""
        if self.local is None:
            return inf
        num_steps = self.local.epochs * max(1, -(-num_examples // self.local.batch_size))
        return effective_steps(num_steps, momentum=self.local.momentum)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks found: why the reply does not count, or else the norms of what a training reply sends."""

    fault: str | None
    norms: Mapping[str, float] = field(default_factory=dict)
    """‖·‖₂ of `delta`, `buffers` and `extra`."""
    too_long: bool = False
    """The only fault is an update that is too long in comparison with the round before."""


def check_reply(answer: object, kind: type[Reply], request: Request, limits: ReplyLimits) -> Checked:
    """Check an answer, which should be a reply of this kind but may be any object; then the check may raise."""
    if type(answer) is not kind:  # a subclass could answer every question about itself differently
        if type(answer) is Failure:
            return Checked(str(answer.cause) or "failed")
        return Checked(f"answered with a {type(answer).__name__}, expected a {kind.__name__}")
    if fault := _claim_fault(answer, request, limits):
        return Checked(fault)
    if isinstance(answer, TrainReply):
        assert isinstance(request, Train)
        fault = _number_fault(answer, limits)
        return Checked(fault) if fault else _check_tensors(answer, request, limits)
    return Checked(_content_fault(answer, request))


def _claim_fault(reply: Reply, request: Request, limits: ReplyLimits) -> str | None:
    """What every reply says: whose it is, which round it answers, and how many examples it stands for."""
    if type(reply.client) is not int or type(reply.round) is not int or type(reply.num_examples) is not int:
        return "client, round and num_examples must be whole numbers"
    if reply.round != request.round:
        return f"answered round {reply.round} in round {request.round}"
    most = limits.most_examples(reply.client)
    if not 0 <= reply.num_examples <= most:
        return f"claims {reply.num_examples} examples; 0 to {most} are allowed"
    return None


def _number_fault(reply: TrainReply, limits: ReplyLimits) -> str | None:
    loss, steps = reply.loss, reply.effective_steps
    if type(loss) not in NUMBERS or not abs(loss) <= MAX_LOSS:
        return f"loss is {loss!r}"
    if type(steps) not in NUMBERS or not isfinite(steps):
        return f"claims {steps!r} effective steps"
    most = min(limits.most_steps(reply.num_examples), MAX_STEPS)
    if reply.num_examples and not MIN_STEPS <= steps <= most * (1 + 1e-6):
        return f"claims {steps} effective steps; 1 to {most:g} are possible"
    return None


def _check_tensors(reply: TrainReply, request: Train, limits: ReplyLimits) -> Checked:
    """Names, shapes and types as in the request, finite values, and an update that is not too long."""
    norms: dict[str, float] = {}
    for what, given, expected in (
        ("delta", reply.delta, request.model.params),
        ("buffers", reply.buffers, request.model.buffers),
        ("extra", reply.extra, request.extra),
    ):
        if fault := unlike(given, expected):
            return Checked(f"{what}: {fault}")
        norms[what] = norm(given)
        if not isfinite(norms[what]):  # of finite float64 tensors too, if they are beyond all limits
            name = non_finite(given) or ""
            return Checked(f"{what}: {name!r} is not finite" if name else f"{what}: its norm is not finite")
    for name, buffer in reply.buffers.items():
        if name.endswith(VARIANCE) and bool((buffer < 0).any()):
            return Checked(f"buffers: {name!r} is negative")
    if norms["delta"] > limits.max_norm:
        fault = f"update norm {norms['delta']:.4g} is above the limit {limits.max_norm:.4g}"
        return Checked(fault, too_long=norms["delta"] <= limits.max_absolute_norm)
    return Checked(None, norms)


def _content_fault(reply: MeasureReply | ReestimateReply | EvaluateReply, request: Request) -> str | None:
    match reply:
        case MeasureReply():
            if fault := not_plain(reply.moments):
                return fault
            return f"{name!r} is not finite" if (name := non_finite(reply.moments)) else None
        case ReestimateReply():
            return not_plain(reply.moments) or moments_fault(reply.moments, request.model.buffers, reply.num_examples)
        case EvaluateReply():
            if type(reply.correct) is int and 0 <= reply.correct <= reply.num_examples:
                return not_plain(reply.classes) or _counts_fault(reply)
            return f"claims {reply.correct!r} correct answers of {reply.num_examples}"


def _counts_fault(reply: EvaluateReply) -> str | None:
    """Whether the counts of single classes fit together and add up to the counts of the reply; a site may omit them."""
    if not reply.classes:
        return None
    counts = reply.classes.get("counts")
    if len(reply.classes) != 1 or counts is None or counts.dtype != torch.int64 or counts.ndim != 2 or len(counts) != 3:
        given = ", ".join(f"{name!r} {tuple(t.shape)} {t.dtype}" for name, t in reply.classes.items()) or "none"
        return f"counts of classes must be one tensor 'counts' (3, classes) of int64, got {given}"
    right, examples, answers = counts
    # Each entry is checked against the total first, so that sums cannot overflow.
    possible = bool(((counts >= 0) & (counts <= reply.num_examples)).all()) and bool(
        ((right <= examples) & (right <= answers)).all()
    )
    if not possible or counts.sum(dim=1).tolist() != [reply.correct, reply.num_examples, reply.num_examples]:
        return f"counts of classes do not add up to {reply.correct} correct answers of {reply.num_examples} examples"
    return None
