"""Table 8 in one command: its methods, the training they share, and the table against the runs' own results."""

import json
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spherefed.api import progress
from spherefed.calibration import Ffc
from spherefed.cli import main
from spherefed.client.personalization import FineTune
from spherefed.errors import FederationError
from spherefed.experiment import Experiment, with_settings
from spherefed.files import read_tensors
from spherefed.recipes.experiments import digits
from spherefed.recipes.methods import plain
from spherefed.recipes.personal import PERSONAL, personal_methods
from spherefed.report.personal import personal_rows
from spherefed.report.summary import summarize
from spherefed.runs.comparison import compare, num_steps
from spherefed.runs.directory import RunDirectory
from spherefed.runs.runner import Engine, run_to_end
from spherefed.server.algorithms import fedrep, scaffold

SMALL = ["rounds=2", "local.epochs=1", "data.examples=300", "partition.clients=4", "partition.alpha=1.0"]
LABELS = {
    "fedavg+fine-tuning": "FedAvg + fine-tuning",
    "fedavg+local-ffc": "FedAvg + local FFC",
    "lg-fedavg": "LG-FedAvg",
    "fedrep": "FedRep",
    "babu+fine-tuning": "FedAvg + BABU + fine-tuning",
    "spherefed+ffc": "SphereFed + local FFC",
    "spherefed+sgd": "SphereFed + fine-tuning of the head",
    "spherefed+blended": "SphereFed + blended FFC",
}
SHARED = [name for name in PERSONAL if name.startswith("spherefed")]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command's runs, and what it said in `said.txt` and `progress.txt`."""
    out = tmp_path_factory.mktemp("table")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "SECONDS_PER_LINE", 1e9)  # a line per round, and none because time has passed
        said = call("personalize", "digits", "--seeds", "2", *settings, "--out", str(out / "runs"))
    (out / "said.txt").write_text(said[0])
    (out / "progress.txt").write_text(said[1])
    return out


def call(*arguments: str) -> tuple[str, str]:
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    given, out, err = sys.argv, StringIO(), StringIO()
    sys.argv = ["spherefed", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    finally:
        sys.argv = given
    return out.getvalue(), err.getvalue()


def result(table: Path, method: str, seed: int) -> dict[str, Any]:
    return RunDirectory(table / "runs" / method / f"seed-{seed}").result()


def small() -> Experiment:
    return with_settings(digits(), SMALL)


@pytest.mark.slow
def test_every_column_of_table_8_is_run_under_the_protocol_of_appendix_b(table: Path) -> None:
    for seed in (0, 1):
        partitions = set()
        for method in PERSONAL:
            path = table / "runs" / method / f"seed-{seed}"
            data = json.loads((path / "experiment.json").read_text())["data"]
            assert (data["pooled"], data["held_out"]) == (True, 0.15)
            partitions.add(read_tensors(path / "partition.safetensors")[1]["digest"])
        assert len(partitions) == 1


def test_the_table_is_made_of_the_runs_results(table: Path) -> None:
    rows = {row.label: row for row in personal_rows([table / "runs"])}
    assert next(iter(rows)) == LABELS["fedavg+fine-tuning"]
    assert set(rows) == set(LABELS.values())
    said = (table / "said.txt").read_text()
    for method, label in LABELS.items():
        personal = [result(table, method, seed)["personal"] for seed in (0, 1)]
        for found in personal:
            assert found["std"] == pytest.approx(statistics.pstdev(found["clients"].values()))
        mean, std = (statistics.fmean(found[name] for found in personal) for name in ("mean", "std"))
        half_width = 12.7062 * abs(personal[0]["mean"] - personal[1]["mean"]) / 2  # t(0.975, 1), printed tables
        assert rows[label].mean.half_width == pytest.approx(half_width, rel=1e-4, abs=1e-12)
        assert re.search(rf"^{re.escape(label)} +2 +{100 * mean:.2f} ± {100 * std:.2f} ", said, re.MULTILINE), said


def test_methods_that_differ_after_training_share_it(table: Path) -> None:
    lines = {(table / "runs" / method / "seed-1" / "rounds.jsonl").read_bytes() for method in SHARED}
    assert len(lines) == 1  # seconds included
    written = (table / "progress.txt").read_text()
    assert SHARED[0] in written
    assert not any(method in written for method in SHARED[1:])  # no round of them was run


@pytest.mark.parametrize("method", SHARED)
def test_a_shared_training_gives_what_a_run_of_its_own_gives(method: str, table: Path, tmp_path: Path) -> None:
    own = run_to_end(personal_methods(small(), {"fedavg+spherefed": {"local.lr": 0.3}})[method], tmp_path / "own")
    path = table / "runs" / method / "seed-0"
    assert json.loads((path / "experiment.json").read_text())["local"]["lr"] == 0.3  # tuned
    shared = result(table, method, 0)
    assert {**shared, "seconds": None} == {**own, "seconds": None}


@pytest.mark.parametrize(
    "first",
    [
        replace(plain(small()), algorithm=scaffold()),
        replace(personal_methods(small(), {})["fedrep"], algorithm=fedrep()),
    ],
    ids=["scaffold", "fedrep"],
)
def test_what_clients_remember_is_taken_over_with_the_rounds(first: Experiment, tmp_path: Path) -> None:
    after = {"calibration": Ffc()} if first.algorithm.share == "all" else {"personalization": FineTune()}
    methods = {"first": first, "second": replace(first, **after)}
    steps = list(compare(methods, 1, tmp_path / "shared", engine=Engine()))
    assert [step.method for step in steps] == ["first"] * 2
    assert num_steps(methods, 1) == 2
    own = run_to_end(methods["second"], tmp_path / "own")
    shared = RunDirectory(tmp_path / "shared" / "second" / "seed-0").result()
    assert {**shared, "seconds": None} == {**own, "seconds": None}


def test_a_calibration_that_takes_part_in_training_is_not_shared() -> None:
    every = replace(plain(small()), calibration=Ffc(), calibrate_every=1)
    assert every.training_part() != replace(every, calibration=Ffc(ridge=1.0)).training_part()
    assert num_steps({"a": every, "b": replace(every, calibration=Ffc(ridge=1.0))}, 1) == 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_other_runs_go_on_where_some_fail(jobs: int, tmp_path: Path) -> None:
    diverging = plain(small()).with_lr(1e20)
    methods = {"bad": diverging, "bad+ffc": replace(diverging, calibration=Ffc()), "good": plain(small())}
    begin = "bad, seed 0 and bad+ffc, seed 0: round 0: no client gave a usable reply"
    with pytest.raises(
        FederationError, match=rf"^{re.escape(begin)}.*; the other 2 of 6 runs are finished: .* report "
    ):
        list(compare(methods, 2, tmp_path, engine=Engine(), jobs=jobs))
    assert {path.parent.name for path in tmp_path.glob("*/*/result.json")} == {"seed-0", "seed-1"}
    assert {path.parents[1].name for path in tmp_path.glob("*/*/result.json")} == {"good"}
    (row,) = summarize([tmp_path]).rows
    assert row.seeds == (0, 1)


@pytest.mark.usefixtures("undrawn")
def test_fine_tuning_is_set_by_method(tmp_path: Path) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    one = ["--set", "spherefed+sgd:personalization.epochs=2", "--set", "spherefed+sgd:personalization.lr=0.25"]
    call("personalize", *settings, "--set", "local.lr=0.05", *one, "--out", str(tmp_path))
    plain_form = {m: json.loads((tmp_path / m / "seed-0" / "experiment.json").read_text()) for m in PERSONAL}
    assert plain_form["spherefed+sgd"]["personalization"] == {
        "kind": "fine-tune",
        "part": "head",
        "epochs": 2,
        "lr": 0.25,
    }
    # What is set for all methods comes before what was tuned.
    assert {form["local"]["lr"] for form in plain_form.values()} == {0.05}
    (row,) = personal_rows([tmp_path / "spherefed+sgd"])
    assert row.mean.half_width is None


@pytest.mark.usefixtures("undrawn")
def test_a_single_personalised_run_says_what_it_found(tmp_path: Path) -> None:
    words = ["data.pooled=true", "data.held_out=0.2", "personalization=local-ffc", *SMALL]
    settings = [word for setting in words for word in ("--set", setting)]
    said, _ = call("run", "digits", *settings, "--out", str(tmp_path / "run"))
    assert "accuracy of personal models, mean ± std over clients" in said
    said, _ = call("run", "digits", *settings, "--set", "personalization=none", "--out", str(tmp_path / "none"))
    assert "global_model/local_test/by_clients" in said
    reported, _ = call("report", str(tmp_path / "run"), "--markdown", "--out", str(tmp_path / "page.html"))
    assert "| FedAvg + local FFC |" in reported
