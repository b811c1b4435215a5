"""What crosses the wire: requests, their replies, and how many bytes each is. Tensors and scalars only.

A request is answered by every client that is asked; a reply repeats the round it answers, so that a late or
repeated one can be told from the right one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from spherefed.tensors import Tensors, digest, num_bytes

LEARNED_HEAD = "head.weight"
"""What a learned head is called among the parameters."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The shared part of a model as a value."""

    params: Tensors
    """Trained, shared, moved by the server optimiser."""
    buffers: Tensors
    """Running statistics: shared, plainly averaged."""
    head: Tensors | None = None
    """None: the head everyone has already; set by calibration."""

    def with_head(self, weight: Tensor) -> "ModelState":
        """This model with another head: a learned one is a parameter and is replaced there, a fixed one travels now."""
        if LEARNED_HEAD in self.params:
            learned = weight.to(self.params[LEARNED_HEAD].dtype)
            return ModelState(dict(self.params) | {LEARNED_HEAD: learned}, self.buffers, self.head)
        return ModelState(self.params, self.buffers, {"weight": weight})

    def moved(self, update: Tensors, buffers: Tensors) -> "ModelState":
        """The model after a server step: params + update, and the averaged buffers."""
        return ModelState({name: p + update[name] for name, p in self.params.items()}, buffers, self.head)

    def with_buffers(self, buffers: Tensors) -> "ModelState":
        """This model with other running statistics."""
        return ModelState(self.params, buffers, self.head)

    def tensors(self) -> Tensors:
        """All tensors under one roof, by prefixed names: for files and digests."""
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
    """Train the model on your data, from this round's state and at this learning rate."""

    round: int
    model: ModelState
    lr: float
    extra: Tensors = field(default_factory=dict)
    """What the algorithm sends beside the model (SCAFFOLD's control variate); its reply's `extra` is of this form."""


@dataclass(frozen=True, slots=True)
class TrainReply:
    client: int
    round: int
    num_examples: int
    """Examples trained on, by which the reply is weighed; 0 if there was no step."""
    effective_steps: float
    """‖a_k‖₁ of FedNova: the number of local steps, weighted by how far momentum carries each."""
    loss: float
    """Mean training loss over the examples seen in this round."""
    delta: Tensors
    """Local params − params of the request."""
    buffers: Tensors
    extra: Tensors = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """Send the moments that the calibration adds up."""

    round: int
    model: ModelState


@dataclass(frozen=True, slots=True)
class MeasureReply:
    client: int
    round: int
    num_examples: int
    moments: Tensors


@dataclass(frozen=True, slots=True)
class Reestimate:
    """Send the moments of what BatchNorm layers are given, for the model's running statistics."""

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
    """Count right answers on the examples you hold out."""

    round: int
    model: ModelState
    personalize: bool = False
    """Make the model your own first, as the experiment says."""
    extra: Tensors = field(default_factory=dict)
    """What that needs from the server: the summed statistics of a blended FFC."""


@dataclass(frozen=True, slots=True)
class EvaluateReply:
    client: int
    round: int
    num_examples: int
    correct: int


Request = Train | Measure | Reestimate | Evaluate
Reply = TrainReply | MeasureReply | ReestimateReply | EvaluateReply


@dataclass(frozen=True, slots=True)
class Failure:
    """Instead of a reply: this client did not answer, and why."""

    client: int
    cause: str


@dataclass(slots=True)
class Traffic:
    """Bytes to and from each client, measured on the messages themselves."""

    down: dict[int, int] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)

    def sent(self, clients: Iterable[int], message: Request) -> None:
        """The same message to each of them: weighed once."""
        size = message_bytes(message)
        for client in clients:
            self.down[client] = self.down.get(client, 0) + size

    def received(self, client: int, message: Reply) -> None:
        self.up[client] = self.up.get(client, 0) + message_bytes(message)


def message_bytes(message: Any) -> int:
    """Tensors at their size, scalars at eight bytes; names and framing are the transport's and not counted.

    >>> message_bytes(EvaluateReply(client=0, round=1, num_examples=10, correct=9))
    32
    """
    total = 0
    for name in message.__slots__:
        value = getattr(message, name)
        if isinstance(value, (int, float)):
            total += 8
        elif isinstance(value, (dict, Mapping)):  # asking a dict whether it is a Mapping takes longer than weighing it
            total += num_bytes(value)
        elif value is not None:
            total += message_bytes(value)
    return total
