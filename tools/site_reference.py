"""The generated pages of the reference: fields, commands, the public Python names, the files of a run."""

import doctest
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import spherefed
from spherefed import cli, recipes
from spherefed.cli.fields import experiment_fields
from spherefed.experiment import with_settings
from spherefed.files import read_tensors
from spherefed.recipes.methods import with_method
from spherefed.runs import directory
from spherefed.runs.runner import run_to_end

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "python.md"


def pages() -> dict[str, str]:
    """Path below docs/ → Markdown."""
    return {
        "reference/fields.md": fields_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/run-files.md": run_files_page(),
    }


# Fields of an experiment


def fields_page() -> str:
    """Every field by its path, one table for each table of a TOML file."""
    sections: dict[str, list[str]] = {}
    for row in experiment_fields():
        table, _, name = row.path.rpartition(".")
        cells = (f"`{name}`", _cell(row.type), f"`{row.default}`" if row.default else "", _cell(row.meaning))
        sections.setdefault(table, []).append("| " + " | ".join(cells) + " |")
    lines = [
        "# Fields of an experiment",
        "`spherefed fields` prints this list. `--set path=value` sets a field; [a TOML file](../experiment.md) sets",
        "them by table. `model.encoder[mlp]` are the fields of one kind: they exist if `model.encoder.kind` is `mlp`.",
    ]
    for table, rows in sections.items():
        title = f"`{table}`" if table else "The experiment itself"
        lines += ["", f"## {title}", "", "| field | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


# Commands


def commands_page() -> str:
    """Every command with its options, from click."""
    lines = ["# Commands", "`spherefed COMMAND --help` prints the same."]
    for path, command in _commands("spherefed", cli.commands):
        lines += ["", f"## {path}", "", *_command(path, command)]
    return "\n".join(lines) + "\n"


def _commands(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(f"{path} {name}", command)


def _command(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    help_text = inspect.cleandoc((command.help or "").replace("\b", ""))
    yield _cell(help_text) if "\n" not in help_text else help_text.replace("<", "&lt;")
    yield ""
    usage = command.collect_usage_pieces(context)
    yield f"```\n{path} {' '.join(usage)}\n```"
    records = [p.get_help_record(context) for p in command.params if not getattr(p, "hidden", False)]
    if found := [record for record in records if record is not None]:
        yield ""
        yield "| option | meaning |"
        yield "|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(meaning)} |" for name, meaning in found)
    if command.epilog:
        examples = [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("spherefed")]
        if examples:
            yield ""
            yield "```\n" + "\n".join(examples) + "\n```"


# The public Python names


def python_page() -> str:
    """Every name of `spherefed.__all__` by package, with its docstring and an example that a test runs."""
    lines = [
        "# Python, every public name",
        "`import spherefed as sf` gives all of these names; [Python, by example](../python.md) shows them together.",
    ]
    blocks = example_blocks()
    for title, names in grouped_names().items():
        lines += ["", f"## {title}"]
        for name, path in names.items():
            lines += ["", f"::: {path}", *(["    options:", "      members: false"] if _is_error(name) else [])]
            if block := next((each for each in blocks if mentions(each, name)), None):
                lines += ["", "```pycon", block.strip(), "```"]
    return "\n".join(lines) + "\n"


GROUPS = {
    "api": "Experiments",
    "experiment": "Parts of an experiment",
    "data": "Data and partitions",
    "nn": "Networks and heads",
    "losses": "Losses",
    "client": "Clients",
    "server": "Server",
    "calibration": "Calibration",
    "runs": "Runs",
    "errors": "Errors",
}


def grouped_names() -> dict[str, dict[str, str]]:
    """Title → public name → where it is defined."""
    found: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    for name in sorted(spherefed.__all__, key=lambda name: (name[0].isupper(), name)):  # functions first
        if name == "__version__":
            continue
        value = getattr(spherefed, name)
        # A union or another value without a module of its own is documented where the package fetches it from.
        module = getattr(value, "__module__", "")
        if not module.startswith("spherefed"):
            module = next(f"spherefed.{home}" for home, names in spherefed._HOMES.items() if name in names)
        title = GROUPS.get(module.split(".")[1], "Parts of an experiment")
        found[title][name] = f"{module}.{getattr(value, '__name__', name)}"
    return {title: names for title, names in found.items() if names}


def _is_error(name: str) -> bool:
    """The members of an error are Python's."""
    value = getattr(spherefed, name)
    return isinstance(value, type) and issubclass(value, Exception)


def example_blocks() -> list[str]:
    """The doctest blocks of the page of examples, in its order."""
    return re.findall(r"^```pycon\n(.*?)^```", EXAMPLES.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def mentions(block: str, name: str) -> bool:
    """Whether code of this block (not its output) uses `sf.NAME`."""
    code = "".join(example.source for example in doctest.DocTestParser().get_examples(block))
    return re.search(rf"\bsf\.{name}\b", code) is not None


# The files of a run


def run_files_page() -> str:
    """Every file of a run directory with its meaning and its content in a small run."""
    meanings = dict(re.findall(r"^([\w*./]+)\s+(.+)$", (directory.__doc__ or "").partition("\n\n")[2], re.MULTILINE))
    lines = [
        "# Files of a run",
        (directory.__doc__ or "").partition("\n")[0],
        "",
        "The samples below are from",
        "`spherefed run digits --method fedavg+spherefed --set rounds=2 --set local.epochs=1`,",
        "run while this page was built.",
        "",
        "| file | content |",
        "|---|---|",
        *(f"| `{name}` | {_cell(meaning)} |" for name, meaning in meanings.items()),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        experiment = with_method(recipes.RECIPES["digits"](), "fedavg+spherefed", recipes.tuned("digits"))
        run_to_end(with_settings(experiment, ["rounds=2", "local.epochs=1"]), folder)
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.stat().st_size:
                lines += ["", f"## {path.name}", "", *_sample(path)]
    return "\n".join(lines) + "\n"


def _sample(path: Path) -> Iterator[str]:
    if path.suffix == ".safetensors":
        tensors, metadata = read_tensors(path)
        yield "| tensor | shape | type |"
        yield "|---|---|---|"
        for name, tensor in tensors.items():
            shape = "×".join(map(str, tensor.shape)) or "scalar"
            yield f"| `{name}` | {shape} | {str(tensor.dtype).removeprefix('torch.')} |"
        if metadata:
            yield ""
            yield f"Metadata: {', '.join(f'`{name}`' for name in sorted(metadata))}."
        return
    text = path.read_text(encoding="utf-8")
    content: Any = [json.loads(line) for line in text.splitlines()][:1] if path.suffix == ".jsonl" else json.loads(text)
    first = content[0] if path.suffix == ".jsonl" else content
    yield "The first line, formatted:\n" if path.suffix == ".jsonl" else ""
    shown = json.dumps(_shortened(first), indent=2, ensure_ascii=False)
    yield f"```json\n{shown}\n```"


def _shortened(value: Any) -> Any:
    """Lists and tables of one entry per client or class, cut after three entries; times and digests as their type."""
    if isinstance(value, dict):
        per_client = value and all(str(key).isdigit() for key in value)
        items = list(value.items())[: 3 if per_client else None]
        return {key: _shortened(each) for key, each in items} | ({"…": "…"} if per_client and len(value) > 3 else {})
    if isinstance(value, list):
        return [_shortened(each) for each in value[:3]] + (["…"] if len(value) > 3 else [])
    return value
