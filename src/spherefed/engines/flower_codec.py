"""Our messages as Flower's records and back: scalars as JSON, all tensors as one piece of safetensors, never a pickle.

One piece and not one per tensor, because Flower carries every array by several requests of its own, on each leg of the
way; a small one travels inside the record and costs none. And safetensors keeps dtypes that numpy files do not.
Whatever does not decode into exactly the fields of a known message is refused with a reason: a site may send anything.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from spherefed.errors import ConfigError
from spherefed.files import pack, unpack
from spherefed.messages import ModelState
from spherefed.tensors import Tensors, prefixed, under

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ModuleNotFoundError as missing:
    raise ConfigError("Flower is not installed: pip install 'spherefed[flower]'") from missing

MESSAGE, TENSORS, SAFETENSORS = "message", "tensors", "safetensors"
SMALL = 1 << 20
"""Bytes up to which tensors travel inside the record. Larger ones are an array, which Flower cuts into chunks."""


def encode(message: Any, **beside: str) -> RecordDict:
    """A dataclass of scalars, texts, named tensors and models, as records; and texts beside it."""
    scalars: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, ModelState):
            tensors |= prefixed(field.name, value.tensors())
        elif isinstance(value, Mapping):
            tensors |= prefixed(field.name, value)
        else:
            scalars[field.name] = value
    content = pack(tensors, {}) if tensors else b""  # safetensors cannot read back a file of none
    record = ConfigRecord({"kind": type(message).__name__, "fields": json.dumps(scalars), **beside})
    if len(content) <= SMALL:
        record[SAFETENSORS] = content
        return RecordDict({MESSAGE: record})
    array = Array("uint8", (len(content),), SAFETENSORS, content)
    return RecordDict({MESSAGE: record, TENSORS: ArrayRecord({SAFETENSORS: array})})


def beside(records: RecordDict, name: str) -> str:
    """A text that travels beside a message."""
    return str(records[MESSAGE][name])


def decode(records: RecordDict, kinds: Mapping[str, type]) -> Any:
    """The message that the records are, one of these kinds; a ValueError says why they are none."""
    try:
        kind, text = records[MESSAGE]["kind"], records[MESSAGE]["fields"]
        tensors = _tensors(records)
        scalars = json.loads(str(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a message of ours: {type(error).__name__} {error}") from error
    if kind not in kinds or not isinstance(scalars, dict):
        raise ValueError(f"is of an unknown kind {kind!r}")
    return _built(kinds[str(kind)], scalars, tensors)


def _tensors(records: Any) -> Tensors:
    content = records[TENSORS][SAFETENSORS].data if TENSORS in records else records[MESSAGE][SAFETENSORS]
    return unpack(content)[0] if content else {}


def _built(wanted: type, scalars: dict[str, Any], tensors: Tensors) -> Any:
    hints = get_type_hints(wanted)
    strangers = scalars.keys() - hints.keys() | {n for n in tensors if n.partition(".")[0] not in hints}
    if strangers:
        raise ValueError(f"a {wanted.__name__} has no {', '.join(map(repr, sorted(strangers)))}")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if hint is ModelState:
            values[name] = _model(under(name, tensors))
        elif hint == Tensors:
            values[name] = under(name, tensors)
        elif name in scalars and _fits(scalars[name], hint):
            values[name] = hint(scalars[name])
        else:
            raise ValueError(f"a {wanted.__name__} needs {name!r}: {hint.__name__}, got {scalars.get(name)!r}")
    return wanted(**values)


def _model(tensors: Tensors) -> ModelState:
    try:
        return ModelState.from_tensors(tensors)
    except KeyError as error:
        raise ValueError(f"a model has no part {error}") from error


def _fits(value: Any, hint: type) -> bool:
    return type(value) is hint or (hint is float and type(value) is int)
