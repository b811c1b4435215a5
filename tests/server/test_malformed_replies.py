"""Malformed replies of every kind, directly and through the codec: they are recorded, and the others' result stays."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from spherefed.assembly import Assembly
from spherefed.calibration import Ccvr, Ffc
from spherefed.calibration.refit import Refit
from spherefed.deployment.app import REPLY_TYPES
from spherefed.engines.flower import _check_sender
from spherefed.engines.flower_codec import decode, encode
from spherefed.experiment import Data
from spherefed.messages import EvaluateReply, Failure, MeasureReply, ModelState, Request, TrainReply, max_reply_bytes
from spherefed.server.collection import calibrate, evaluate_on_clients
from spherefed.server.federation import Fleet, federate
from spherefed.server.validation import MAX_CAUSE, UNKNOWN_CLIENT, Rejection
from support.small import assembled, in_process

HOSTILE = 1

TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "none": lambda t: None,
    "a text": lambda t: "tensor",
    "a number": lambda t: 1.0,
    "a list": lambda t: t.tolist(),
    "a numpy array": lambda t: t.numpy(),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "bfloat16": lambda t: t.to(torch.bfloat16),
    "float16": lambda t: t.to(torch.float16),
    "bool": lambda t: t.to(torch.bool),
    "int8": lambda t: t.to(torch.int8),
    "complex": lambda t: t.to(torch.complex64),
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "with a gradient": lambda t: t.half().requires_grad_(),
    "no elements": lambda t: t.reshape(-1)[:0],
    "one dimension more": lambda t: t[None],
    "zero strides of another shape": lambda t: torch.zeros((), dtype=t.dtype).expand(10**3, 10**3),
    "a nested tensor": lambda t: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "quantized": lambda t: torch.quantize_per_tensor(torch.zeros(t.shape), 0.1, 0, torch.qint8),
}


class Changing(torch.Tensor):
    """A tensor that counts as finite until it is added up."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function.__name__ in ("_foreach_norm", "sum"):
            return super().__torch_function__(function, types, given, named or {})
        raise RuntimeError(f"no {function.__name__} of this tensor")


@dataclass(frozen=True, slots=True)
class Impostor:
    """Says that it is whatever is expected."""

    reply: Any

    @property
    def __class__(self) -> Any:
        return type(self.reply)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reply, name)


TENSORS["a subclass"] = lambda t: t.as_subclass(Changing)

CONTAINERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no container": lambda m: None,
    "a list of names": list,
    "a text for tensors": lambda m: "delta",
    "a number for tensors": lambda m: 7,
    "no tensors": lambda m: {},
    "a missing tensor": lambda m: dict(list(m.items())[1:]),
    "one tensor too many": lambda m: m | {"more": torch.zeros(3)},
    "a name that is a number": lambda m: m | {5: torch.zeros(3)},
    "a very long name": lambda m: m | {"x" * 10**6: torch.zeros(3)},
}

NUMBERS: dict[str, Any] = {
    "none": None,
    "a text": "12",
    "true": True,
    "a fraction": 1.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -3,
    "above every limit": 10**30,
    "5000 digits": 10**5000,
    "a list": [1],
    "a tensor": torch.tensor(3),
    "a complex number": 1j,
}

OBJECTS: dict[str, Any] = {
    "none": None,
    "a number": 5,
    "a text": "reply",
    "an object": object(),
    "a dict": {"client": HOSTILE},
    "a class": TrainReply,
    "an array": np.zeros(3),
    "a failure without a cause": Failure(HOSTILE, None),  # type: ignore[arg-type]
    "a failure with a number": Failure(HOSTILE, 5),  # type: ignore[arg-type]
    "a failure of 5 MB": Failure(HOSTILE, "x" * 5_000_000),
    "a failure with half a character": Failure(HOSTILE, "\ud800"),
    "a failure without a client": Failure(None, "lost"),  # type: ignore[arg-type]
}


def with_moments(reply: MeasureReply, **changed: torch.Tensor) -> MeasureReply:
    return replace(reply, moments={**reply.moments, **changed})


def spoilt(field: str, tensor: str | None = None) -> dict[str, Callable[[Any], Any]]:
    """Replies with malformed named tensors; the spoilt tensor is this one, or the first."""

    def of_tensor(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
        def spoil(reply: Any) -> Any:
            tensors = dict(getattr(reply, field))
            name = tensor or next(iter(tensors))
            return replace(reply, **{field: tensors | {name: change(tensors[name])}})

        return spoil

    def of_container(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
        return lambda reply: replace(reply, **{field: change(dict(getattr(reply, field)))})

    found = {f"{field}: {name}": of_tensor(change) for name, change in TENSORS.items()}
    return found | {f"{field}: {name}": of_container(change) for name, change in CONTAINERS.items()}


def numbers(field: str, allowed: Sequence[str] = ()) -> dict[str, Callable[[Any], Any]]:
    def spoil(value: Any) -> Callable[[Any], Any]:
        return lambda reply: replace(reply, **{field: value})

    return {f"{field}: {name}": spoil(value) for name, value in NUMBERS.items() if name not in allowed}


COMMON: dict[str, Callable[[Any], Any]] = {
    **{f"instead of a reply: {name}": (lambda reply, given=given: given) for name, given in OBJECTS.items()},
    "instead of a reply: an impostor": Impostor,
    **numbers("num_examples"),
    **numbers("round"),
}
TRAIN = {**COMMON, **spoilt("delta"), **numbers("loss", ["a fraction", "negative", "above every limit"])}
TRAIN |= numbers("effective_steps", ["a fraction"])
TRAIN |= {
    "a huge update": lambda r: replace(r, delta={n: torch.full_like(t, 3e38) for n, t in r.delta.items()}),
    "too many steps": lambda r: replace(r, effective_steps=r.effective_steps * 1.01),
    "too few steps": lambda r: replace(r, effective_steps=0.5),
    "too many examples": lambda r: replace(r, num_examples=10**6 + 1),
    "a reply to another request": lambda r: EvaluateReply(r.client, r.round, 1, 1),
}
FFC = {
    **COMMON,
    **spoilt("moments", "gram"),
    "U": lambda r: replace(r, moments=r.moments | {"cross": r.moments["gram"]}),
}
FFC |= {
    "counts beyond the reply": lambda r: replace(r, num_examples=r.num_examples - 1),
    "many zero rows": lambda r: replace(
        r, moments=r.moments | {"counts": r.moments["counts"] + torch.tensor([0, 2**62])}
    ),
}
CCVR = {**COMMON, **spoilt("moments", "sums")}
CCVR |= {
    "10¹² examples": lambda r: replace(r, moments=r.moments | {"counts": r.moments["counts"] * 0 + 10**12}),
    "huge sums": lambda r: replace(r, moments=r.moments | {"sums": r.moments["sums"] * 1e300}),
}
EVALUATE = {**COMMON, **numbers("correct"), **spoilt("classes")}
for allowed in ("classes: no tensors", "classes: a missing tensor"):  # a site may omit the counts of classes
    del EVALUATE[allowed]
KINDS = [
    (stage, name)
    for stage, kinds in (("train", TRAIN), ("ffc", FFC), ("ccvr", CCVR), ("evaluate", EVALUATE))
    for name in kinds
]


class Spoilt:
    """A fleet with one hostile client, directly or through the codec."""

    def __init__(self, fleet: Fleet, spoil: Callable[[Any], Any], *, codec: bool) -> None:
        self.fleet, self.clients, self._spoil, self._codec = fleet, fleet.clients, spoil, codec

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        for answer in self.fleet.ask(clients, request):
            reply = self._spoil(answer) if answer.client == HOSTILE else answer
            yield through_codec(answer.client, reply, request) if self._codec else reply


def through_codec(client: int, reply: Any, request: Request) -> Any:
    """What arrives at the server; a site that cannot encode its own reply sends nothing that can be decoded."""
    try:
        records = encode(reply)
    except Exception as error:
        return Failure(client, f"cannot be sent: {type(error).__name__}")
    try:
        decoded = decode(records, REPLY_TYPES, max_bytes=max_reply_bytes(request))
    except Exception as error:
        return Failure(client, f"malformed reply: {type(error).__name__}: {error}")
    return _check_sender(client, decoded)


class Without:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clients = fleet, [c for c in fleet.clients if c != HOSTILE]

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        return self.fleet.ask(clients, request)


class Remembered:
    """A fleet that answers each request once; who asks again gets copies, which may be spoilt."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clients = fleet, fleet.clients
        self._answers: dict[Any, Any] = {}

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
        for client in clients:
            question = (client, type(request), request.round, request.model.digest())
            if question not in self._answers:
                (self._answers[question],) = self.fleet.ask([client], request)
            yield copy.deepcopy(self._answers[question])


class Stage(NamedTuple):
    """A request to clients: the federation that makes it, and what it leads to without the hostile client."""

    assembly: Assembly
    model: ModelState
    fleet: Remembered
    expected: Any


CALIBRATIONS = {"ffc": Ffc(), "ccvr": Ccvr(num_virtual=3, refit=Refit(lr=0.1, epochs=1))}


def outcome(stage: str, assembly: Assembly, fleet: Any, model: ModelState) -> tuple[Any, tuple[Rejection, ...]]:
    """What the stage leads to, and whom it rejected."""
    if stage == "train":
        done = next(federate(fleet, model, assembly.plan()))
        return (done.model.digest(), done.clients, done.loss), done.rejected
    if stage == "evaluate":
        found = evaluate_on_clients(fleet, model, 1, num_classes=assembly.dataset.num_classes)
        return (found.clients, found.counts), found.rejected
    result = calibrate(CALIBRATIONS[stage], fleet, model, assembly.context(model, 1))
    return result.model.digest(), result.rejected


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    kinds = {"train": None, "ffc": CALIBRATIONS["ffc"], "ccvr": CALIBRATIONS["ccvr"], "evaluate": None}
    made = {}
    for stage, calibration in kinds.items():
        assembly = assembled(calibration=calibration, rounds=1, data=Data(held_out=0.2))
        model, fleet = assembly.initial(), Remembered(in_process(assembly))
        expected, rejected = outcome(stage, assembly, Without(fleet), model)
        assert rejected == ()
        made[stage] = Stage(assembly, model, fleet, expected)
    return made


@pytest.mark.filterwarnings("ignore")  # of torch, about prototypes
@pytest.mark.parametrize("codec", [False, True], ids=["directly", "through the codec"])
@pytest.mark.parametrize(("stage", "name"), KINDS, ids=[f"{stage}, {name}" for stage, name in KINDS])
def test_a_malformed_reply_is_recorded_and_changes_no_bit(
    stage: str, name: str, codec: bool, stages: dict[str, Stage]
) -> None:
    spoil = {"train": TRAIN, "ffc": FFC, "ccvr": CCVR, "evaluate": EVALUATE}[stage][name]
    assembly, model, fleet, expected = stages[stage]
    found, rejected = outcome(stage, assembly, Spoilt(fleet, spoil, codec=codec), model)
    assert found == expected
    assert {line.client for line in rejected} <= {HOSTILE, UNKNOWN_CLIENT}
    assert HOSTILE in {line.client for line in rejected}
    assert all(line.cause and len(line.cause.encode()) <= MAX_CAUSE for line in rejected)


def test_about_a_hundred_kinds_are_tried_for_each_request() -> None:
    assert len(KINDS) >= 200


class Trap:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("trap")


def test_an_object_that_raises_at_every_touch_is_recorded(stages: dict[str, Stage]) -> None:
    assembly, model, fleet, _ = stages["train"]

    class WithTrap:
        clients = fleet.clients

        def ask(self, clients: Sequence[int], request: Request) -> Iterator[Any]:
            for answer in fleet.ask(clients, request):
                yield Trap() if answer.client == HOSTILE else answer

    done = next(federate(WithTrap(), model, assembly.plan()))
    assert [line.client for line in done.rejected] == [UNKNOWN_CLIENT, HOSTILE]


def test_a_reply_of_tensors_larger_than_expected_is_not_decoded() -> None:
    reply = MeasureReply(0, 0, 5, {"gram": torch.zeros(10**6)})
    with pytest.raises(ValueError, match="bytes of tensors"):
        decode(encode(reply), REPLY_TYPES, max_bytes=1000)
    assert decode(encode(reply), REPLY_TYPES, max_bytes=4 * 10**6).num_examples == 5
    with pytest.raises(ValueError, match="characters of scalars"):
        decode(encode(Failure(0, "x" * 2_000_000)), REPLY_TYPES)


def test_every_valid_reply_is_within_its_size() -> None:
    for calibration in CALIBRATIONS.values():
        assembly = assembled(calibration=calibration)
        model = assembly.initial()
        head = assembly.context(model, 1).head
        from spherefed.messages import Measure

        for reply in in_process(assembly).ask(range(4), Measure(1, model)):
            assert isinstance(reply, MeasureReply)
            assert sum(t.nbytes for t in reply.moments.values()) <= calibration.max_bytes(head, 10**6)
