"""Convert messages to Flower's records and back: scalars as JSON, all tensors as one safetensors blob, no pickle.

All tensors share one blob, because Flower needs several HTTP requests for each array, both to and from the SuperLink. A
small blob is part of the record and needs no request of its own. safetensors also keeps dtypes that numpy files lack.
A site can send any bytes: content that does not decode into exactly the fields of a known message is rejected.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from spherefed.errors import ConfigError, install_extra
from spherefed.files import parse_json, tensors_from_bytes, tensors_to_bytes
from spherefed.messages import ModelState
from spherefed.tensors import Tensors, add_prefix, strip_prefix

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ModuleNotFoundError as missing:
    raise ConfigError(f"Flower is not installed: {install_extra('flower')}") from missing

MESSAGE, TENSORS, SAFETENSORS = "message", "tensors", "safetensors"
MAX_INLINE_BYTES = 1 << 20
"""Tensors up to this size are part of the record. Larger ones are an array, which Flower sends in chunks."""

MAX_HEADER_BYTES = 1 << 20
"""Names, dtypes and shapes of the tensors, and the scalars of a message, may each take up to this size."""


def encode(message: Any, **texts: str) -> RecordDict:
    """Records of a dataclass of scalars, strings, named tensors and models; `texts` are sent with it."""
    scalars: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, ModelState):
            tensors |= add_prefix(field.name, value.tensors())
        elif isinstance(value, Mapping):
            tensors |= add_prefix(field.name, value)
        else:
            scalars[field.name] = value
    content = tensors_to_bytes(tensors, {}) if tensors else b""  # safetensors cannot read a file without tensors
    record = ConfigRecord({"kind": type(message).__name__, "fields": json.dumps(scalars), **texts})
    if len(content) <= MAX_INLINE_BYTES:
        record[SAFETENSORS] = content
        return RecordDict({MESSAGE: record})
    array = Array("uint8", (len(content),), SAFETENSORS, content)
    return RecordDict({MESSAGE: record, TENSORS: ArrayRecord({SAFETENSORS: array})})


def read_text(records: RecordDict, name: str) -> str:
    """A text that was sent with a message."""
    return str(records[MESSAGE][name])


def decode(records: RecordDict, message_types: Mapping[str, type], *, max_bytes: int | None = None) -> Any:
    """The message in these records; a ValueError says why they do not hold one of these types.

    Sizes are checked before anything is parsed. `max_bytes` limits the tensors; None: no limit.
    """
    try:
        kind, text = records[MESSAGE]["kind"], str(records[MESSAGE]["fields"])
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(f"{len(text)} characters of scalars, at most {MAX_HEADER_BYTES} are allowed")
        tensors = _tensors(records, max_bytes)
        scalars = parse_json(text)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a spherefed message: {type(error).__name__} {error}") from error
    if not isinstance(scalars, dict):
        raise ValueError(f"the fields must be a JSON object, got a {type(scalars).__name__}")
    if not isinstance(kind, str) or kind not in message_types:
        raise ValueError(f"unknown message type {str(kind)[:100]!r}; expected one of {', '.join(message_types)}")
    return _build(message_types[str(kind)], scalars, tensors)


def _tensors(records: Any, max_bytes: int | None) -> Tensors:
    content = records[TENSORS][SAFETENSORS].data if TENSORS in records else records[MESSAGE][SAFETENSORS]
    if max_bytes is not None and len(content) > max_bytes + MAX_HEADER_BYTES:
        raise ValueError(f"{len(content)} bytes of tensors, at most {max_bytes + MAX_HEADER_BYTES} are expected")
    return tensors_from_bytes(content)[0] if content else {}


def _build(wanted: type, scalars: dict[str, Any], tensors: Tensors) -> Any:
    hints = get_type_hints(wanted)
    unknown = scalars.keys() - hints.keys() | {n for n in tensors if n.partition(".")[0] not in hints}
    if unknown:
        raise ValueError(f"a {wanted.__name__} has no field {', '.join(map(repr, sorted(unknown)))}")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in scalars and (hint is ModelState or hint == Tensors):
            raise ValueError(f"a {wanted.__name__} needs {name!r} as tensors, got a scalar")
        if hint is ModelState:
            values[name] = _model(strip_prefix(name, tensors))
        elif hint == Tensors:
            values[name] = strip_prefix(name, tensors)
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
