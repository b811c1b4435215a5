"""Messages between server and clients: requests, replies, and their sizes in bytes. Tensors and scalars only.

A reply repeats the round of its request, so that the server can detect late and repeated replies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from spherefed.tensors import Tensors, digest, num_bytes

LEARNED_HEAD = "head.weight"
"""The name of a learned head among the parameters."""
MAX_CLASSES = 2**16
"""Most classes of a model."""

BEFORE_TRAINING = -1
"""The round number of what is collected before round 0."""

Part = Literal["all", "encoder", "head"]
"""A part of a classifier."""


def part_of(tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    """The tensors of a classifier that belong to this part of it."""
    return {n: t for n, t in tensors.items() if part == "all" or n.startswith(f"{part}.")}


@dataclass(frozen=True, slots=True)
class ModelState:
    """The shared part of a model."""

    params: Tensors
    """Trained parameters, shared and updated by the server optimizer."""
    buffers: Tensors
    """Running statistics, shared and averaged."""
    head: Tensors | None = None
    """A fixed head that calibration replaced. None: the head that every client derives from the seed."""

    def with_head(self, weight: Tensor) -> "ModelState":
        """This model with another head. A learned head replaces the parameter; a fixed head is sent from now on."""
        if LEARNED_HEAD in self.params:
            learned = weight.to(self.params[LEARNED_HEAD].dtype)
            return ModelState(dict(self.params) | {LEARNED_HEAD: learned}, self.buffers, self.head)
        return ModelState(self.params, self.buffers, {"weight": weight})

    def with_buffers(self, buffers: Tensors) -> "ModelState":
        """This model with other running statistics."""
        return ModelState(self.params, buffers, self.head)

    def tensors(self) -> Tensors:
        """All tensors in one mapping, with prefixed names, for files and digests."""
        parts = {"params": self.params, "buffers": self.buffers, "head": self.head or {}}
        return {f"{part}.{name}": t for part, tensors in parts.items() for name, t in tensors.items()}

    def digest(self) -> str:
        return digest(self.tensors())

    @staticmethod
    def from_tensors(tensors: Tensors) -> "ModelState":
        """The inverse of `tensors`."""
        parts: dict[str, dict[str, Tensor]] = {"params": {}, "buffers": {}, "head": {}}
        for full_name, tensor in tensors.items():
            part, _, name = full_name.partition(".")
            parts[part][name] = tensor
        return ModelState(parts["params"], parts["buffers"], parts["head"] or None)


@dataclass(frozen=True, slots=True)
class Train:
    """Request: train the model on the client's data with this learning rate."""

    round: int
    model: ModelState
    lr: float
    extra: Tensors = field(default_factory=dict)
    """Further tensors of the algorithm (SCAFFOLD's control variate). `extra` of the reply has the same names."""


@dataclass(frozen=True, slots=True)
class TrainReply:
    client: int
    round: int
    num_examples: int
    """Number of training examples, the weight of the reply; 0 if the client made no step."""
    effective_steps: float
    """‖a_k‖₁ of FedNova: the number of local steps, each weighted by its total effect through momentum."""
    loss: float
    """Mean training loss over the examples seen in this round."""
    delta: Tensors
    """Local params − params of the request."""
    buffers: Tensors
    extra: Tensors = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """Request: send the moments that the calibration sums over clients."""

    round: int
    """`BEFORE_TRAINING`: the moments of the head that training starts from."""
    model: ModelState


@dataclass(frozen=True, slots=True)
class MeasureReply:
    client: int
    round: int
    num_examples: int
    moments: Tensors


@dataclass(frozen=True, slots=True)
class Reestimate:
    """Request: send the moments of the inputs of BatchNorm layers, from which running statistics are computed."""

    round: int
    model: ModelState


@dataclass(frozen=True, slots=True)
class ReestimateReply:
    client: int
    round: int
    num_examples: int
    moments: Tensors


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Request: count correct predictions on the client's held-out examples."""

    round: int
    model: ModelState
    personalize: bool = False
    """Whether the client first personalizes the model as the experiment says."""
    extra: Tensors = field(default_factory=dict)
    """Tensors that personalization needs from the server: the summed statistics of a blended FFC."""


@dataclass(frozen=True, slots=True)
class EvaluateReply:
    client: int
    round: int
    num_examples: int
    correct: int
    classes: Tensors = field(default_factory=dict, compare=False)
    """`counts` (3, C) int64: for each class, its correct answers, its examples, and the answers that name it. Empty: a
    site does not tell them, because it has too few examples of a class."""


Request = Train | Measure | Reestimate | Evaluate
Reply = TrainReply | MeasureReply | ReestimateReply | EvaluateReply


@dataclass(frozen=True, slots=True)
class Failure:
    """Takes the place of a reply if a client failed or did not answer."""

    client: int
    cause: str


@dataclass(slots=True)
class Traffic:
    """Bytes sent to and received from each client, measured on the messages."""

    down: dict[int, int] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)

    def sent(self, clients: Iterable[int], message: Request) -> None:
        """Count one message for each of these clients; its size is computed once."""
        size = message_bytes(message)
        for client in clients:
            self.down[client] = self.down.get(client, 0) + size

    def received(self, client: int, message: Reply) -> None:
        """Count a reply; one without tensors where they belong has no size."""
        try:
            size = message_bytes(message)
        except Exception:  # a reply from outside may hold any object
            size = 0
        self.up[client] = self.up.get(client, 0) + size

    def add(self, other: "Traffic") -> None:
        """Count the messages of another request too."""
        for mine, others in ((self.down, other.down), (self.up, other.up)):
            for client, size in others.items():
                mine[client] = mine.get(client, 0) + size


def max_reply_bytes(request: Request) -> int | None:
    """Most bytes of tensors in a valid reply; None for `Measure`, whose calibration knows (`max_bytes`)."""
    match request:
        case Train():
            return num_bytes(request.model.params) + num_bytes(request.model.buffers) + num_bytes(request.extra)
        case Evaluate():  # three counts for each class
            return 3 * 8 * MAX_CLASSES
        case Reestimate():  # for each layer n, Σx and Σx² in float64
            return sum(24 * max(buffer.numel(), 1) for buffer in request.model.buffers.values())
        case Measure():
            return None


def message_bytes(message: Any) -> int:
    """Size of the tensors, plus eight bytes per scalar. Names and framing depend on the transport and are not counted.

    >>> message_bytes(EvaluateReply(client=0, round=1, num_examples=10, correct=9))
    32
    """
    total = 0
    for name in message.__slots__:
        value = getattr(message, name)
        if isinstance(value, (int, float)):
            total += 8
        elif isinstance(value, (dict, Mapping)):  # dict first: the check against the ABC is slow
            total += sum([tensor.nbytes for tensor in value.values()])
        elif value is not None:
            total += message_bytes(value)
    return total
