"""One word per concept: no identifier, file name or JSON key of the package is a word that another word replaced."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spherefed

SOURCE = Path(spherefed.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

REPLACED = {
    "LocalModel, load_state": ["workbench", "bench", "lay"],
    "GradientCorrection, NO_CORRECTION": ["bend", "straight"],
    "ClientConfig": ["duties"],
    "aggregate": ["combine", "combined"],
    "validate_replies, ReplyLog, Rejection": ["admit", "tally", "refusal", "ledger"],
    "collect": ["gathering"],
    "server_state, client_state": ["memory", "carried"],
    "handshake": ["roll_call"],
    "locked": ["held"],
    "make_fleet": ["hire"],
    "strip_prefix, add_prefix": ["under", "prefixed"],
    "performance_options": ["pace_options"],
    "unstacked": ["apart"],
    "PersonalizationContext": ["place"],
    "apply_sgd": ["descend", "descent"],
    "forward": ["scored", "straight"],
    "train_request": ["opening"],
    "server_step": ["carry", "carried"],
    "total_step": ["reach"],
    "derived_state, load_derived": ["adopt", "adopted", "present"],
    "prune, roll_back": ["settle", "rewind"],
    "a word of the field": [
        "surroundings",
        "undelivered",
        "greet",
        "dismiss_busy",
        "resident",
        "facts",
        "convention",
        "lined_up",
        "courses",
        "may_draw",
        "likes_channels_last",
        "methods_own",
        "doubts",
    ],
}
"""The word to use → words that it replaced, in snake_case."""
INSTEAD = {form: new for new, olds in REPLACED.items() for old in olds for form in (old, f"{old}s", f"{old}es")}
"""Also in the plural."""

WRITTEN = re.compile(r"\.?([\w-]+)\.(?:json|jsonl|safetensors|toml|csv|npz|html|md|svg|png)")
"""The name of a file in a string, with its stem."""


def snake_case(name: str) -> str:
    """`_RollCall`, `roll_call`, `ROLL_CALL` and `roll-call` are the same words."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_")
    return parted.strip("_").lower()


def names_defined_or_used(node: ast.AST) -> Iterator[str]:
    """The identifiers that this node itself contains."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=asname):
            yield from name.split(".")
            yield from [asname] if asname else []
        case ast.Global(names=names) | ast.Nonlocal(names=names) | ast.MatchClass(kwd_attrs=names):
            yield from names
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            yield name
        case _:
            pass


def keys(node: ast.AST) -> Iterator[str]:
    """String constants that serve this node as keys, as the name of a kind, or as the name of a file."""
    found: list[ast.AST | None] = []
    match node:
        case ast.Dict(keys=names) | ast.MatchMapping(keys=names):
            found = [*names]
        case ast.Subscript(slice=name):
            found = [name]
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault"), args=[name, *_]):
            found = [name]
        case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()]):
            found = [name]
        case ast.AnnAssign(target=ast.Name(id="kind"), value=name):
            found = [name]
        case ast.Constant(value=str(text)) if match := WRITTEN.fullmatch(text):
            yield match[1]
        case _:
            pass
    yield from (key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str))


def offences(source: str) -> list[str]:
    """Words of the source that were replaced, each with its line and the word to use."""
    found = {
        (getattr(node, "lineno", 0), name)
        for node in ast.walk(ast.parse(source))
        for name in (*names_defined_or_used(node), *keys(node))
        if snake_case(name) in INSTEAD
    }
    return [f"line {line}: {name} (use {INSTEAD[snake_case(name)]})" for line, name in sorted(found)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_name_in_a_module_is_a_word_that_was_replaced(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8")) == []


def test_no_file_of_the_package_is_named_by_a_word_that_was_replaced() -> None:
    named = [path.relative_to(SOURCE) for path in SOURCE.rglob("*") if "__pycache__" not in path.parts]
    assert len(named) > len(FILES)
    assert [str(path) for path in named if snake_case(path.stem) in INSTEAD] == []


@pytest.mark.parametrize(
    "source",
    [
        "bench = 1",
        "class Bench: ...",
        "def _roll_call(): ...",
        "class RollCall: ...",
        "def f(*, memory): ...",
        "f(memory=1)",
        "x.combine(y)",
        "benches = tallys = []",
        "from spherefed import gathering",
        "from spherefed.data import sources as place",
        "import spherefed.workbench",
        "try: ...\nexcept ValueError as doubts: ...",
        "match x:\n    case Train(memory=1): ...",
        "match x:\n    case [*carried]: ...",
        "x = {'memory': 1}",
        "x['tally'] = 1",
        "x.get('tally')",
        "'tally' in x",
        "kind: ClassVar[str] = 'straight'",
        "open('ledger.jsonl')",
    ],
)
def test_the_test_itself_finds_replaced_words(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    ["held_out = 1", "x.to(memory_format=1)", "'# in memory'", "print('memory')", "x['bench_size']", "laying = 1"],
)
def test_the_test_itself_leaves_other_words_alone(source: str) -> None:
    assert offences(source) == []


def test_only_one_function_says_how_to_install_an_extra() -> None:
    """The package is on no index that a name alone would find: see `install_extra`."""
    saying = [file.relative_to(SOURCE).as_posix() for file in FILES if "pip install" in file.read_text("utf-8")]
    assert saying == ["errors.py"]
