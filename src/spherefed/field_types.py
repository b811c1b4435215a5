"""Check the types of fields that are given in Python. Files and `--set` go through `schema`, which checks its own."""

import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from spherefed.errors import ConfigError
from spherefed.schema import SCALARS, is_adapter, open_contract, shown

_PYTHON_TYPES: dict[Any, Any] = {int: int, float: (int, float), bool: bool, str: str}


def check_types(value: Any, path: str = "") -> None:
    """Raise a ConfigError for a field of a dataclass built in Python whose value has another type than declared."""
    hints = get_type_hints(type(value))
    for field in fields(value):
        if not _fits(hints[field.name], given := getattr(value, field.name)):
            raise _type_error(hints[field.name], given, f"{path}.{field.name}" if path else field.name)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value has this type. A user's own dataclass fits every union of components."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        own = is_dataclass(value) and type(value).__module__.partition(".")[0] != __package__
        return any(_fits(member, value) for member in get_args(hint)) or (
            own and open_contract(get_args(hint)) is not None
        )
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(get_args(hint)[0], item) for item in value)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if getattr(hint, "_is_protocol", False):
        return False
    return isinstance(value, _PYTHON_TYPES.get(hint, hint)) and (hint is bool or not isinstance(value, bool))


def _type_error(hint: Any, value: Any, path: str) -> ConfigError:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    none = " or None" if type(None) in members else ""
    member = next(member for member in members if member is not type(None))
    if get_origin(member) is tuple:
        kind = SCALARS[get_args(member)[0]].removeprefix("a ")
        return ConfigError(f"{path} must be a tuple of {kind}s{none}, got {shown(value)}; write it as (…,)")
    if get_origin(member) is Literal:
        return ConfigError(f"{path} must be one of {', '.join(get_args(member))}{none}, got {shown(value)}")
    if member in SCALARS:
        return ConfigError(f"{path} must be {SCALARS[member]}{none}, got {shown(value)}")
    classes = [each for each in members if isinstance(each, type) and is_dataclass(each) and not is_adapter(each)]
    names = ", ".join(f"sf.{each.__name__}(…)" for each in classes)
    own = "" if open_contract(members) is None else " or a frozen dataclass of your own"
    return ConfigError(f"{path} must be {names}{none}{own}, got {shown(value)}")
