"""Convert frozen dataclasses to plain data (JSON, TOML) and back.

The conversion is strict: an unknown name or a wrong type raises a ConfigError that names its path. A field with several
possible dataclasses is written as a table with a `kind`. If all its other fields have their defaults, the kind alone is
enough: `head = "orthonormal"` means `head = {kind = "orthonormal"}`. `None` is written as `null`, or as "none" in
formats without null.

A union that contains a Protocol is open: its kind may also be `package.module:Name`, a user's frozen dataclass with the
methods of the Protocol. If the union contains an adapter (a dataclass with the fields `kind` and `options`), any
callable is accepted as well, and the other fields of the table are its keyword arguments.
"""

import difflib
import functools
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spherefed.components import (
    component_name,
    expected_component,
    find_component,
    has_member,
    is_component_name,
    required_members,
)
from spherefed.errors import ConfigError

Option = bool | int | float | str | None | tuple[Any, ...]
Options = tuple[tuple[str, Option], ...]
"""Keyword arguments of a user's callable, in the order of their names."""


MAX_WHOLE = 2**128
"""Whole numbers in experiments are smaller: seeds of random streams have up to 128 bits."""
DEFAULT_IN_DIGESTS = "default in digests"
"""Key in the metadata of a field whose default depends on others: the value that digests leave out."""
SCALARS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""Names of plain types in error messages."""
MAX_SHOWN = 200
"""Characters of a given value in an error message."""


def suggest(given: str, allowed: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the most similar allowed name, and all allowed names.

    >>> suggest("orthnormal", ["learned", "orthonormal"])
    "did you mean 'orthonormal'? allowed: learned, orthonormal"
    """
    names = list(allowed)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "allowed: " + ", ".join(names)


def shown(value: object) -> str:
    """A given value in an error message: short, whatever it is.

    >>> shown([1, 2]), len(shown("x" * 10**6)), shown(10**5000)
    ('[1, 2]', 201, 'an int that is too long to print')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # whole numbers of thousands of digits, lists in lists in lists
        article = "an" if type(value).__name__[0] in "aeiou" else "a"
        return f"{article} {type(value).__name__} that is too long to print"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def to_plain(value: Any, *, defaults: bool = True) -> Any:
    """Convert a dataclass to nested dicts, lists, strings and numbers, with or without fields that equal their default.

    >>> from spherefed.server.optimizers import ServerSgd
    >>> to_plain(ServerSgd(momentum=0.3), defaults=False)
    {'kind': 'sgd', 'momentum': 0.3}
    """
    if is_adapter(type(value)):
        return {"kind": value.kind} | {name: to_plain(option) for name, option in value.options}
    if isinstance(value, tuple | list):
        return [to_plain(item, defaults=defaults) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    table = {"kind": value.kind} if hasattr(value, "kind") else {}
    for field in fields(value):
        child = getattr(value, field.name)
        if defaults or child != field.metadata.get(DEFAULT_IN_DIGESTS, _default(field)):
            plain = table[field.name] = to_plain(child, defaults=defaults)
            if is_dataclass(child) and field.name in _open_fields(type(value)):
                table[field.name] = {"kind": kind_of(child)} | {n: v for n, v in plain.items() if n != "kind"}
    return table


def kind_of(component: Any) -> str:
    """What an experiment calls this component: a built-in kind, or `package.module:Name`."""
    own = type(component)
    if is_adapter(own) or own.__module__.partition(".")[0] == __package__:
        return str(component.kind)
    return component_name(own)


def is_adapter(member: Any) -> bool:
    """Whether it is the dataclass that makes a component of a user's callable."""
    return is_dataclass(member) and [f.name for f in fields(member)] == ["kind", "options"]


def built_in_kinds(union: Any) -> dict[str, Any]:
    """The built-in alternatives of a union, by kind."""
    return {member.kind: member for member in get_args(union) if hasattr(member, "kind") and not is_adapter(member)}


def own_components(value: Any) -> Iterator[str]:
    """The names of all components of a user in nested dataclasses."""
    owner: Any = type(value)
    for name, child in ((f.name, getattr(value, f.name)) for f in fields(value)) if is_dataclass(value) else ():
        if name in _open_fields(owner) and child is not None and ":" in (kind := kind_of(child)):
            yield kind
        yield from own_components(child)


@functools.cache
def _open_fields(owner: Any) -> frozenset[str]:
    """The fields of a dataclass that accept a user's own components."""
    if owner.__module__.partition(".")[0] != __package__:
        return frozenset()
    hints = get_type_hints(owner)
    return frozenset(f.name for f in fields(owner) if open_contract(get_args(hints[f.name])) is not None)


def open_contract(members: Iterable[Any]) -> Any:
    """The Protocol of an open union."""
    return next((member for member in members if getattr(member, "_is_protocol", False)), None)


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def from_plain(wanted: Any, plain: Any, path: str = "") -> Any:
    """The inverse of `to_plain`: make an instance of the type `wanted`, or raise a ConfigError that names the path."""
    if isinstance(wanted, type) and is_dataclass(wanted):
        return _dataclass_from(wanted, plain, path)
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _union_from(get_args(wanted), plain, path)
    if origin is Literal:
        if plain not in get_args(wanted):
            raise ConfigError(f"{path} must be one of {', '.join(map(str, get_args(wanted)))}; got {shown(plain)}")
        return plain
    if origin is tuple:
        if not isinstance(plain, list | tuple):
            raise ConfigError(f"{path} must be a list, got {shown(plain)}")
        return tuple(from_plain(get_args(wanted)[0], item, f"{path}[{i}]") for i, item in enumerate(plain))
    return _scalar_from(wanted, plain, path)


def with_path(plain: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of nested plain data in which the dotted `path` is `value`. A new `kind` resets its fields to defaults.

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
    child = copy.get(head)
    if isinstance(child, str):  # shorthand for a kind with its defaults
        child = {"kind": child}
    copy[head] = with_path(child if isinstance(child, Mapping) else {}, rest, value)
    return copy


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """The differences between two pieces of plain data, one line for each path.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ['b.c: 2 → 3']
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        lines: list[str] = []
        for name in dict.fromkeys([*left, *right]):
            lines += differences(left.get(name), right.get(name), f"{path}.{name}" if path else name)
        return lines
    return [] if left == right else [f"{path}: {shown(left)} → {shown(right)}"]


def _dataclass_from(wanted: Any, plain: Any, path: str) -> Any:
    if isinstance(plain, str) and hasattr(wanted, "kind"):
        plain = {"kind": plain}
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{path or wanted.__name__} must be a table of fields, got {shown(plain)}")
    known = {f.name: f for f in fields(wanted)}
    kind = getattr(wanted, "kind", None)
    if kind is not None and plain.get("kind", kind) != kind:
        given_kind = shown(plain["kind"])
        raise ConfigError(f"{_join(path, 'kind')} {given_kind} is unknown; {suggest(given_kind, [kind])}")
    given = {name: value for name, value in plain.items() if name != "kind" or kind is None}
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown key {shown(_join(path, str(name)))}; {suggest(str(name)[:MAX_SHOWN], known)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{_join(path, name)} is required")
    hints = get_type_hints(wanted)
    values = {
        name: from_plain(hints[name], _completed(known[name], hints[name], value), _join(path, name))
        for name, value in given.items()
    }
    return wanted(**values)


def _completed(field: "Field[Any]", hint: Any, value: Any) -> Any:
    """A table of one dataclass with the fields that only the default of this field has, such as the rate of a refit."""
    if field.default_factory is MISSING or not isinstance(value, Mapping) or not is_dataclass(hint):
        return value
    return {**to_plain(field.default_factory(), defaults=False), **value}


def _union_from(members: tuple[Any, ...], plain: Any, path: str) -> Any:
    if type(None) in members and (plain in (None, "none") or plain == {"kind": "none"}):
        return None
    kinds = {member.kind: member for member in members if hasattr(member, "kind") and not is_adapter(member)}
    if not kinds:
        rest = [member for member in members if member is not type(None)]
        return from_plain(rest[0], plain, path)
    kind = plain if isinstance(plain, str) else plain.get("kind") if isinstance(plain, Mapping) else None
    if isinstance(kind, str) and kind in kinds:
        return _dataclass_from(kinds[kind], plain, path)
    contract = open_contract(members)
    if contract is not None and is_component_name(kind):
        table = {"kind": kind} if isinstance(plain, str) else plain
        return _own_from(contract, next(filter(is_adapter, members), None), table, path)
    raise _kind_error(members, kind, plain, path)


def _kind_error(members: tuple[Any, ...], kind: Any, plain: Any, path: str) -> ConfigError:
    allowed = [member.kind for member in members if hasattr(member, "kind") and not is_adapter(member)]
    allowed += ["none"] if type(None) in members else []
    allowed += [] if open_contract(members) is None else ["package.module:Name of your own"]
    if kind is None:
        return ConfigError(f"{path} needs a kind, got {shown(plain)}; allowed: {', '.join(allowed)}")
    return ConfigError(f"{path}.kind {shown(kind)} is unknown; {suggest(shown(kind)[1:-1], allowed)}")


def _own_from(contract: Any, adapter: Any, table: Mapping[str, Any], path: str) -> Any:
    """A user's own component: an instance of their dataclass, or an adapter around their callable."""
    kind, given = table["kind"], {name: value for name, value in table.items() if name != "kind"}
    expected = expected_component(contract, adapter)
    found = find_component(kind, f"{path}.kind", expected)
    missing = [name for name in required_members(contract) if not has_member(found, name)]
    if isinstance(found, type) and is_dataclass(found) and not missing:
        if not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise ConfigError(f"{path}.kind {kind!r} must be frozen: write @dataclass(frozen=True) above it")
        return _dataclass_from(found, given, path)
    if adapter is not None and callable(found):
        return adapter(kind, tuple(sorted((name, _option(value, f"{path}.{name}")) for name, value in given.items())))
    what = f"a {type(found).__name__}" if not isinstance(found, type) else "a class that is not a dataclass"
    if isinstance(found, type) and is_dataclass(found):
        what = f"a dataclass without {', '.join(missing)}"
    raise ConfigError(f"{path}.kind {kind!r} is {what}; expected {expected}")


def _option(value: Any, path: str) -> Option:
    if isinstance(value, list | tuple):
        return tuple(_option(item, f"{path}[{i}]") for i, item in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{path} must be a number, a text, true or false, or a list of them, got {shown(value)}")


def _scalar_from(wanted: Any, plain: Any, path: str) -> Any:
    if wanted is float and type(plain) in (int, float) and abs(plain) <= sys.float_info.max:
        return float(plain)
    if type(plain) is not wanted:
        raise ConfigError(f"{path} must be {SCALARS.get(wanted, typing.cast(str, wanted))}, got {shown(plain)}")
    if wanted is int and abs(plain) >= MAX_WHOLE:
        raise ConfigError(f"{path} must be below 2¹²⁸, got {shown(plain)}")
    return plain


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
