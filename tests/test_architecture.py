"""The order of rooms: imports go upward only, and nothing unpickles or evaluates what it was given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spherefed

SOURCE = Path(spherefed.__file__).parent

# A module or package may import from rows above its own, and from what stands before it in its row.
ROWS = [
    ["errors", "rng", "tensors", "files", "components", "schema", "field_types"],
    ["data"],
    ["nn", "losses"],
    ["messages"],
    ["calibration"],
    ["acceleration"],
    ["client"],
    ["server"],
    ["experiment", "assembly"],
    ["engines"],
    ["runs"],
    ["deployment"],
    ["costs", "recipes", "report", "tracking", "reproduce", "api", "cli"],
    ["__main__"],
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
        # `from spherefed.runs import directory as runs` and `from spherefed.data import sources` import modules too.
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
from spherefed.runs import directory as runs
if TYPE_CHECKING:
    from spherefed.cli import main
else:
    from spherefed.nn.heads import ClassifierHead
def late():
    from spherefed.data import sources
"""
    assert rooms_imported(source) == {"rng", "runs", "nn", "data"}


ALLOWED_TO_UNPICKLE = {"data/pickles.py"}
"""CIFAR's own files are pickles; they are read by an unpickler that admits nothing else."""

LOADS_WEIGHTS = {"nn/encoders/efficientnet_lite.py"}
"""Weights inside an installed package, by torch's restricted unpickler, which makes tensors and nothing else."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.load of weights only",
    "torch.save",
    "pickle.load",
    "pickle.loads",
}


def offences(source: str) -> list[str]:
    tree = ast.parse(source)
    modules = [name for name in imported(tree) if name.split(".")[0] in FORBIDDEN_MODULES]
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    calls = [f"{ast.unparse(n.func)}{' of weights only' if _weights_only(n) else ''}" for n in found]
    pickles = [
        "allow_pickle"
        for n in ast.walk(tree)
        if isinstance(n, ast.keyword) and n.arg == "allow_pickle" and ast.unparse(n.value) != "False"
    ]
    return [*modules, *(call for call in calls if call in FORBIDDEN_CALLS), *pickles]


def _weights_only(call: ast.Call) -> bool:
    return any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_unpickles_or_evaluates_what_it_is_given(path: Path) -> None:
    if path.relative_to(SOURCE).as_posix() not in ALLOWED_TO_UNPICKLE:
        allowed = ["torch.load of weights only"] if path.relative_to(SOURCE).as_posix() in LOADS_WEIGHTS else []
        assert offences(path.read_text(encoding="utf-8")) == allowed


def test_the_test_itself_sees_what_is_forbidden() -> None:
    for source in ("import pickle", "from pickle import loads", "eval('1')", "torch.load(p)", "f(allow_pickle=True)"):
        assert offences(source), source
    assert offences("model.eval()\nnp.load(p, allow_pickle=False)") == []


def test_only_engines_import_a_transport() -> None:
    for path in FILES:
        transports = {name.split(".")[0] for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
        assert room(path) == "engines" or not transports & {"ray", "flwr"}, path


# Where a module's tests are

TESTS = Path(__file__).parent

TESTED_TOGETHER = {
    # Encoders are rows of one table of the paper, and costs are cells of one.
    "nn/test_encoders.py": [
        *("nn/encoders/convnet", "nn/encoders/mlp", "nn/encoders/mobilenet", "nn/encoders/norm"),
        *("nn/encoders/resnet", "nn/encoders/shape", "nn/encoders/smallnet", "nn/encoders/vgg"),
    ],
    # Heads from class statistics share their sums and their tests.
    "calibration/test_class_heads.py": [
        *("calibration/balanced", "calibration/class_statistics", "calibration/class_sums"),
        *("calibration/fedcof", "calibration/lda", "calibration/ncm"),
    ],
    "nn/test_pretrained.py": ["nn/encoders/efficientnet_lite"],
    "nn/test_own_preprocessing.py": ["nn/encoders/resize"],
    "test_one_shot.py": ["nn/cached_encoder", "nn/encoders/flatten"],
    "runs/test_head.py": ["cli/head", "runs/head_changes"],
    "runs/test_digests.py": ["cli/runs", "runs/checking"],
    "test_fuzzing.py": ["nn/size"],
    "engines/test_workers.py": ["engines/deadlines", "engines/local"],
    "costs/test_costs.py": ["costs/flops", "costs/setting", "costs/traffic"],
    # A figure of the paper is computed by several models, each checked through it.
    "costs/test_figure5.py": [
        *("cli/costs", "costs/calibration_latency", "costs/comparisons", "costs/latency", "costs/training_memory"),
        "costs/verdicts",
    ],
    "costs/test_hardware.py": ["costs/gemms", "costs/networks", "costs/systolic"],
    # Items of the paper are values: their parts are checked together, and all of them by one command.
    "reproduce/test_items.py": [
        *(
            "reproduce/ablations",
            "reproduce/accuracy_tables",
            "reproduce/alignment",
            "reproduce/campaign",
            "reproduce/catalog",
            "reproduce/causes",
            "reproduce/head_time",
        ),
        *(
            "reproduce/feature_maps",
            "reproduce/figures",
            "reproduce/item",
            "reproduce/formulas",
            "reproduce/headline",
            "reproduce/judging",
            "runs/local_only",
            "reproduce/methods",
            "reproduce/regimes",
            "reproduce/scales",
        ),
        *("reproduce/store", "reproduce/summary", "reproduce/used_tuning"),
    ],
    "reproduce/test_command.py": [
        *(
            "cli/reproduce",
            "reproduce/chart",
            "reproduce/compact_json",
            "reproduce/duration",
            "reproduce/page",
            "reproduce/rates",
        ),
        "reproduce/writing",
    ],
    # An archive is read only through a data set, and every way to damage it is tried there.
    "data/test_damaged_files.py": ["data/archives"],
    # Protocols and errors are tested where they are raised and fulfilled.
    "calibration/test_calibrations.py": ["calibration/context", "calibration/features"],
    "cli/test_commands.py": [
        "errors",
        "cli/data",
        "cli/experiments",
        "cli/options",
        "cli/output",
        "cli/settings",
        "cli/export",
        "cli/tune",
    ],
    "runs/test_export.py": ["runs/model_card"],
    # A correction is a part of a method, compared as a whole with plain loops.
    "server/test_algorithms.py": ["client/corrections"],
    # The server and the sites of a deployment are tested with the engine that connects them.
    "engines/test_flower.py": [
        *("deployment/app", "deployment/handshake", "deployment/membership", "deployment/server", "deployment/site"),
        *("engines/flower_codec", "engines/flower_site_process"),
    ],
    "deployment/test_real_deployments.py": [
        *("deployment/control", "deployment/programs", "deployment/site_process"),
    ],
    # A site's limits are tested by the requests of a hostile server.
    "deployment/test_limits.py": [
        *("deployment/record", "deployment/rejected_requests", "deployment/site_config", "deployment/site_data"),
    ],
    # The front is tested from outside, as an attacker sees it.
    "deployment/test_front.py": ["deployment/forwarding", "deployment/front_rules"],
    "engines/test_ray.py": ["engines/ray_actor", "engines/ray_cluster"],
    # The Python API is called as a user calls it: data and encoders through `run`, values through what it returns.
    "api/test_running.py": ["api/comparison", "api/result", "api/tables"],
    "api/test_in_memory.py": ["api/inputs", "data/in_memory", "data/labels", "nn/encoders/in_memory"],
    "test_components.py": ["nn/encoders/own"],
    # A tracker is read back with the tool that it writes for.
    "tracking/test_trackers.py": ["tracking/following", "tracking/mlflow", "tracking/tensorboard", "tracking/values"],
    "recipes/test_recipes.py": ["recipes/experiments"],
    # An experiment is read, changed and checked as a whole.
    "experiment/test_experiment.py": ["experiment/checks", "experiment/reading", "experiment/values"],
    # Table 8 in one command: its methods, its runs and its table.
    "runs/test_comparison.py": ["recipes/personal", "report/personal"],
    "client/test_client_state.py": ["runs/inspection"],
    # A figure or a section of a page is a value that is tested as part of the whole.
    "report/test_figures.py": [
        *("report/curve_points", "report/curves", "report/drawing", "report/maps", "report/result_figures"),
        "report/spectrum",
    ],
    "report/test_page.py": [
        *("report/blocks", "report/captions", "report/experiment_diff", "report/provenance", "report/sections"),
        "report/wording",
    ],
    "report/test_reports.py": ["report/clients"],
    "runs/test_diagnostics.py": ["report/diagnostics"],
    "report/test_run_files.py": ["report/groups", "report/json_files"],
    "report/test_watch.py": ["report/status"],
    "cli/test_report.py": ["report/terminal"],
}
"""A file of tests → modules without one of their own."""


def test_every_module_has_its_tests_where_one_looks_for_them() -> None:
    names = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in FILES if not path.stem.startswith("__")}
    own = {name for name in names if (TESTS / name).with_name(f"test_{name.rpartition('/')[2]}.py").is_file()}
    together = {name for file, modules in TESTED_TOGETHER.items() if (TESTS / file).is_file() for name in modules}
    assert sorted(names - own - together) == [], "no tests: write some, or say in TESTED_TOGETHER where they are"
    assert sorted(together - (names - own)) == [], "gone, or with tests of their own: remove them from TESTED_TOGETHER"
