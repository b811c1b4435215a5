"""Frozen dataclasses ⇄ plain data (JSON, TOML), strictly: an unknown name or a wrong type is refused by its path.

A value of several possible dataclasses is written as a table with a `kind`, or just the kind if its defaults do:
`head = "orthonormal"` is `head = {kind = "orthonormal"}`. `None` is written `null`, or "none" where there is no null.
"""

import difflib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spherefed.errors import ConfigError


def nearest(given: str, allowed: Iterable[str]) -> str:
    """What to say about a name that is not among the allowed ones.

    >>> nearest("orthnormal", ["learned", "orthonormal"])
    "did you mean 'orthonormal'? allowed: learned, orthonormal"
    """
    names = list(allowed)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "allowed: " + ", ".join(names)


def to_plain(value: Any) -> Any:
    """The dataclass as nested dicts, lists, strings and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        return kind | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(wanted: Any, plain: Any, path: str = "") -> Any:
    """The inverse of `to_plain`: an instance of `wanted`, or a ConfigError that names the path."""
    if isinstance(wanted, type) and is_dataclass(wanted):
        return _dataclass_from(wanted, plain, path)
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _union_from(get_args(wanted), plain, path)
    if origin is Literal:
        if plain not in get_args(wanted):
            raise ConfigError(f"{path} must be one of {', '.join(map(str, get_args(wanted)))}; got {plain!r}")
        return plain
    if origin is tuple:
        if not isinstance(plain, list | tuple):
            raise ConfigError(f"{path} must be a list, got {plain!r}")
        return tuple(from_plain(get_args(wanted)[0], item, f"{path}[{i}]") for i, item in enumerate(plain))
    return _scalar_from(wanted, plain, path)


def with_path(plain: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of nested plain data in which the dotted `path` is `value`; another `kind` starts from its defaults.

    >>> with_path({"local": {"lr": 0.1, "epochs": 2}}, "local.lr", 0.5)
    {'local': {'lr': 0.5, 'epochs': 2}}
    """
    head, _, rest = path.partition(".")
    copy = dict(plain)
    if not rest:
        if head == "kind" and copy.get("kind") != value:
            return {"kind": value}
        copy[head] = value
        return copy
    below = copy.get(head)
    if isinstance(below, str):  # the shorthand for a kind with its defaults
        below = {"kind": below}
    copy[head] = with_path(below if isinstance(below, Mapping) else {}, rest, value)
    return copy


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two pieces of plain data differ, one line each.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ['b.c: 2 → 3']
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        lines: list[str] = []
        for name in dict.fromkeys([*left, *right]):
            lines += differences(left.get(name), right.get(name), f"{path}.{name}" if path else name)
        return lines
    return [] if left == right else [f"{path}: {left!r} → {right!r}"]


def _dataclass_from(wanted: Any, plain: Any, path: str) -> Any:
    if isinstance(plain, str) and hasattr(wanted, "kind"):
        plain = {"kind": plain}
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{path or wanted.__name__} must be a table of fields, got {plain!r}")
    known = {f.name: f for f in fields(wanted)}
    kind = getattr(wanted, "kind", None)
    if kind is not None and plain.get("kind", kind) != kind:
        raise ConfigError(f"{_join(path, 'kind')} {plain['kind']!r} is unknown; {nearest(str(plain['kind']), [kind])}")
    given = {name: value for name, value in plain.items() if name != "kind" or kind is None}
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown key {_join(path, name)!r}; {nearest(name, known)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{_join(path, name)} is required")
    hints = get_type_hints(wanted)
    values = {name: from_plain(hints[name], value, _join(path, name)) for name, value in given.items()}
    return wanted(**values)


def _union_from(members: tuple[Any, ...], plain: Any, path: str) -> Any:
    if type(None) in members and (plain is None or plain == "none"):
        return None
    kinds = {member.kind: member for member in members if hasattr(member, "kind")}
    if not kinds:
        rest = [member for member in members if member is not type(None)]
        return from_plain(rest[0], plain, path)
    kind = plain if isinstance(plain, str) else plain.get("kind") if isinstance(plain, Mapping) else None
    if kind not in kinds:
        allowed = [*kinds, *(["none"] if type(None) in members else [])]
        if kind is None:
            raise ConfigError(f"{path} needs a kind, got {plain!r}; allowed: {', '.join(allowed)}")
        raise ConfigError(f"{path}.kind {kind!r} is unknown; {nearest(str(kind), allowed)}")
    return _dataclass_from(kinds[kind], plain, path)


def _scalar_from(wanted: Any, plain: Any, path: str) -> Any:
    if wanted is float and type(plain) in (int, float) and abs(plain) <= sys.float_info.max:
        return float(plain)
    if type(plain) is not wanted:
        names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(f"{path} must be {names.get(wanted, typing.cast(str, wanted))}, got {plain!r}")
    return plain


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
