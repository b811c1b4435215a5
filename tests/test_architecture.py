"""The order of rooms: imports go upward only, and nothing unpickles or evaluates what it was given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spherefed

SOURCE = Path(spherefed.__file__).parent

# A module or package may import from rows above its own, and from what stands before it in its row.
ROWS = [
    ["errors", "rng", "allocation", "tensors", "files", "schema"],
    ["data"],
    ["nn", "losses"],
    ["messages"],
    [
        "batch_statistics",
        "workbench",
        "corrections",
        "training",
        "evaluation",
        "calibration",
        "personalization",
        "memory",
        "client",
        "stacking",
    ],
    ["server_optimizers", "consistency", "algorithms", "admission", "schedules", "federation", "gathering"],
    ["experiment", "assembly"],
    ["engines"],
    ["checkpoints", "runs", "environment", "runner", "deployment"],
    ["inspection", "costs", "comparison", "tuning", "recipes", "report", "cli"],
]
ORDER = [room for row in ROWS for room in row]

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room(path: Path) -> str:
    """The module or package directly under spherefed that a file belongs to."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported(node: ast.AST) -> Iterator[str]:
    """Names of modules imported anywhere below, functions included; what only type checkers see is left out."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are written in full"
        assert node.module is not None
        # `from spherefed import runs` and `from spherefed.data import sources` import modules too.
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in children:
        yield from imported(child)


def rooms_imported(source: str) -> set[str]:
    names = (name.split(".") for name in imported(ast.parse(source)))
    return {parts[1] for parts in names if parts[0] == "spherefed" and len(parts) > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_go_upward_only(path: Path) -> None:
    own = room(path)
    assert own in ORDER, f"{own} has no place in the order of rooms: add it to ROWS"
    allowed = {*ORDER[: ORDER.index(own)], own}
    found = {name for name in rooms_imported(path.read_text(encoding="utf-8")) if name in ORDER}
    assert found <= allowed, f"{path.name} imports from below: {sorted(found - allowed)}"


def test_the_test_itself_sees_imports_in_functions_and_not_those_for_type_checkers() -> None:
    source = """
from typing import TYPE_CHECKING
import spherefed.rng
from spherefed import runs
if TYPE_CHECKING:
    from spherefed.cli import main
else:
    from spherefed.nn.heads import Linear
def late():
    from spherefed.data import sources
"""
    assert rooms_imported(source) == {"rng", "runs", "nn", "data"}


ALLOWED_TO_UNPICKLE = {"data/pickles.py"}
"""CIFAR's own files are pickles; they are read by an unpickler that admits nothing else."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "torch.save", "pickle.load", "pickle.loads"}


def offences(source: str) -> list[str]:
    tree = ast.parse(source)
    modules = [name for name in imported(tree) if name.split(".")[0] in FORBIDDEN_MODULES]
    calls = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    pickles = [
        "allow_pickle"
        for n in ast.walk(tree)
        if isinstance(n, ast.keyword) and n.arg == "allow_pickle" and ast.unparse(n.value) != "False"
    ]
    return [*modules, *(call for call in calls if call in FORBIDDEN_CALLS), *pickles]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_unpickles_or_evaluates_what_it_is_given(path: Path) -> None:
    if path.relative_to(SOURCE).as_posix() not in ALLOWED_TO_UNPICKLE:
        assert offences(path.read_text(encoding="utf-8")) == []


def test_the_test_itself_sees_what_is_forbidden() -> None:
    for source in ("import pickle", "from pickle import loads", "eval('1')", "torch.load(p)", "f(allow_pickle=True)"):
        assert offences(source), source
    assert offences("model.eval()\nnp.load(p, allow_pickle=False)") == []


def test_only_engines_import_a_transport() -> None:
    for path in FILES:
        transports = {name.split(".")[0] for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
        assert room(path) == "engines" or not transports & {"ray", "flwr"}, path
