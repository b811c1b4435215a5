"""`spherefed fields`: every field of an experiment with its type, default and meaning, read from the dataclasses."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from spherefed.cli.options import JSON, example
from spherefed.cli.output import print_json


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of an experiment."""

    path: str
    type: str
    default: str
    meaning: str


@click.command(
    "fields", epilog=example("spherefed fields", "spherefed fields model.encoder", "spherefed fields local --json")
)
@click.argument("path", default="")
@JSON
def fields(path: str, as_json: bool) -> None:
    """List the fields of an experiment at and below PATH (default: all): type, default and meaning."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from spherefed.errors import ConfigError
    from spherefed.schema import suggest

    rows = list(experiment_fields())
    shown = [row for row in rows if not path or row.path == path or row.path.startswith((f"{path}.", f"{path}["))]
    if not shown:
        paths = dict.fromkeys(part for row in rows for part in (row.path, row.path.rpartition(".")[0]) if part)
        raise ConfigError(f"an experiment has no field {path!r}; {suggest(path, [p for p in paths if '[' not in p])}")
    if as_json:
        print_json({"fields": [{name: getattr(row, name) for name in FieldRow.__slots__} for row in shown]})
        return
    table = Table("field", "type", "default", "meaning", box=None, pad_edge=False)
    for row in shown:
        table.add_row(*(escape(getattr(row, name)) for name in FieldRow.__slots__))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def experiment_fields() -> Iterator[FieldRow]:
    """All fields, nested ones by dotted path; `model.encoder[mlp].widths` belongs to one kind only."""
    from spherefed.experiment import Experiment

    yield from _fields_of(Experiment, "")


def _fields_of(owner: Any, before: str) -> Iterator[FieldRow]:
    hints, meanings = get_type_hints(owner), _meanings(owner)
    for field in dataclasses.fields(owner):
        path, hint = before + field.name, hints[field.name]
        yield FieldRow(path, _type_name(hint), _default(field), meanings.get(field.name, ""))
        for table in (hint, *get_args(hint)):  # a table, or one that may be left out
            if isinstance(table, type) and is_dataclass(table) and not hasattr(table, "kind"):
                yield from _fields_of(table, f"{path}.")
        for kind, member in _kinds(hint).items():
            yield from _fields_of(member, f"{path}[{kind}].")


def _kinds(hint: Any) -> dict[str, Any]:
    from spherefed.schema import built_in_kinds

    return built_in_kinds(hint) if get_origin(hint) in (Union, types.UnionType) else {}


def _type_name(hint: Any) -> str:
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}
    if kinds := _kinds(hint):
        own = ["package.module:Name"] if any(getattr(m, "_is_protocol", False) for m in get_args(hint)) else []
        none = ["none"] if type(None) in get_args(hint) else []
        return " | ".join([*kinds, *own, *none])
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(member) for member in get_args(hint))
    if origin is Literal:
        return " | ".join(map(str, get_args(hint)))
    if origin is tuple:
        return f"list of {_type_name(get_args(hint)[0])}s"
    return names.get(hint, "table")


def _default(field: "Field[Any]") -> str:
    from spherefed.schema import to_plain

    if field.default is MISSING and field.default_factory is MISSING:
        return "required"
    value = to_plain(field.default if field.default_factory is MISSING else field.default_factory())
    if isinstance(value, dict):
        return str(value.get("kind", ""))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _meanings(owner: Any) -> dict[str, str]:
    """The text under each field in the source of the dataclass."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        text = following.value if isinstance(following, ast.Expr) else None
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Constant) and isinstance(text.value, str):
            found[ast.unparse(statement.target)] = " ".join(text.value.split())
    return found
