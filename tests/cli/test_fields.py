"""`spherefed fields`, `--method` and `--json`."""

import json
from pathlib import Path

import numpy as np
import pytest

from spherefed.cli.fields import FieldRow, experiment_fields
from spherefed.data.sources import OTHERS
from spherefed.experiment import Experiment, read_experiment
from spherefed.recipes.experiments import digits
from spherefed.schema import to_plain
from support.command_line import spherefed

SHORT = ["--set", "rounds=1", "--set", "local.epochs=1"]


def paths(plain: object, before: str = "") -> set[str]:
    if not isinstance(plain, dict):
        return set()
    own = {f"{before}{name}" for name in plain if name != "kind"}
    return own.union(*(paths(value, f"{before}{name}.") for name, value in plain.items()))


@pytest.fixture(scope="module")
def all_rows() -> list[FieldRow]:
    return list(experiment_fields())


def test_every_field_of_an_experiment_is_listed(all_rows: list[FieldRow]) -> None:
    rows = {row.path: row for row in all_rows}
    # The list writes the kind behind the field it belongs to: partition[dirichlet].alpha.
    plain_paths = {path.partition("[")[0] + path.partition("]")[2] for path in rows}
    assert paths(to_plain(digits())) <= plain_paths
    assert rows["rounds"].default == "required"
    assert rows["partition[dirichlet].alpha"].type == "number"
    assert rows["model.encoder"].type.endswith("package.module:Name")
    assert rows["calibration"].type.endswith("none")
    assert rows["local.epochs"].meaning.startswith("Passes over the client's data")


def test_every_field_of_an_experiment_has_a_meaning(all_rows: list[FieldRow]) -> None:
    assert [row.path for row in all_rows if not row.meaning] == []


def test_fields_are_printed_below_a_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert spherefed(monkeypatch, "fields", "model.encoder") == 0
    printed = capsys.readouterr().out
    assert "model.encoder[mlp].widths" in printed
    assert "local.lr" not in printed
    assert spherefed(monkeypatch, "fields", "locl") == 2
    assert "did you mean 'local'?" in capsys.readouterr().err
    assert spherefed(monkeypatch, "fields", "local", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["fields"]
    assert {"path": "local.lr", "type": "number", "default": "required"}.items() <= listed[1].items()


def test_the_list_of_data_names_every_form_of_own_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spherefed(monkeypatch, "data", "list") == 0
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("your own data: "))
    assert [form for form in OTHERS if form not in line] == []


def run_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> object:
    """The JSON that a command prints; nothing else goes to standard output."""
    capsys.readouterr()
    assert spherefed(monkeypatch, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_one_word_chooses_a_method(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = run_json(monkeypatch, capsys, "run", "digits", "--method", "fedavg+spherefed", *SHORT, "--out", out)
    assert isinstance(result, dict)
    assert result["run"] == str(out)
    assert result["accuracy"].keys() == {"trained", "calibrated"}
    experiment: Experiment = read_experiment(out)
    assert experiment.local.lr != digits().local.lr  # tuned for this method
    assert experiment.model.normalize
    given = tmp_path / "given"
    settings = [*SHORT, "--set", "local.lr=0.7", "--set", "model.normalize=false"]
    assert spherefed(monkeypatch, "run", "digits", "--method", "fedprox+spherefed", *settings, "--out", given) == 0
    assert (read_experiment(given).local.lr, read_experiment(given).model.normalize) == (0.7, False)


@pytest.mark.slow
def test_json_of_compare_report_evaluate_and_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["fedavg", "fedprox+spherefed"]
    compared = run_json(
        monkeypatch, capsys, "compare", "digits", "--methods", ",".join(names), "--seeds", 1, *SHORT, "--out", "c"
    )
    assert isinstance(compared, dict)
    assert [path.name for path in sorted(Path("c").iterdir()) if path.is_dir()] == names
    assert Path(compared["page"]).exists()
    report = run_json(monkeypatch, capsys, "report", "c")
    assert isinstance(report, dict)
    assert report["rows"] == compared["rows"]
    run = Path("c") / "fedavg" / "seed-0"
    evaluated = run_json(monkeypatch, capsys, "evaluate", run, "--data", "digits")
    assert isinstance(evaluated, dict)
    assert evaluated["accuracy"] == pytest.approx(compared["rows"][0]["accuracy"])
    listed = run_json(monkeypatch, capsys, "data", "list")
    assert isinstance(listed, dict)
    assert "digits" in [item["name"] for item in listed["datasets"]]


@pytest.mark.slow
def test_methods_without_tuned_values_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["compare", "digits", "--methods", "fedavg,fedavg+babu", "--seeds", 1, *SHORT]
    tuned = tmp_path / "none.json"
    tuned.write_text('{"methods": {}}')
    assert spherefed(monkeypatch, *words, "--tuned", tuned, "--out", tmp_path / "a") == 0
    assert "not tuned: fedavg (local.lr 0.1), fedavg+babu" in capsys.readouterr().err
    single = ["--set", "fedavg:local.lr=0.1", "--set", "fedavg+babu:local.lr=0.2"]
    assert spherefed(monkeypatch, *words, *single, "--tuned", tuned, "--out", tmp_path / "b") == 0
    assert "not tuned" not in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "words", [["compare", "digits", "--seeds", 1], ["run", "digits", "--method", "fedavg+spherefed"]]
)
def test_the_rates_of_a_recipe_are_not_tuned_for_other_data(
    words: list[str | int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", images=rng.normal(size=(60, 16)), labels=np.arange(60) % 2)
    other = ["--set", f"data.name=arrays:{tmp_path / 'mine.npz'}", *SHORT]
    assert spherefed(monkeypatch, *words, *other, "--out", tmp_path / "out") == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: not tuned")]
    assert "fedavg+spherefed (local.lr 0.3); recipe 'digits' has these rates for its own data and encoder" in note
    assert note.endswith("tune with spherefed tune")
    if words[0] == "run":
        frozen = ["--set", "rounds=0", "--set", "model.frozen=true"]
        assert spherefed(monkeypatch, *words, *other, *frozen, "--out", tmp_path / "untrained") == 0
        assert "not tuned" not in capsys.readouterr().err  # without rounds there is no rate


def test_a_training_that_diverged_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rate = ["--set", "local.lr=5.0", "--set", "rounds=2", "--set", "partition.clients=4"]
    assert spherefed(monkeypatch, "run", "digits", *SHORT, *rate, "--out", tmp_path / "run") == 0
    assert "the training diverged" in capsys.readouterr().err
    words = ["compare", "digits", "--methods", "fedavg", "--seeds", 1, *SHORT, *rate, "--out", tmp_path / "compared"]
    assert spherefed(monkeypatch, *words) == 0
    assert "lower local.lr, which is 5" in capsys.readouterr().err
