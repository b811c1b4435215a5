"""Whole experiments from Python: run, iter_rounds, compare, tune, and the values that they return."""

import gc
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
import torch

import spherefed as sf
from spherefed.api import progress as api_progress
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.runs.runner import run_to_end
from support.own.encoders import TinyConfig
from support.own.loss import Focal


def short(**changes: Any) -> sf.Experiment:
    return sf.recipe("digits", **{"rounds": 2, "local": {"epochs": 1}, "partition": {"clients": 4}} | changes)


def test_every_exported_name_exists() -> None:
    for name in sf.__all__:
        assert getattr(sf, name) is not None, name
    assert sf.__version__.count(".") == 2


def test_everything_needed_to_build_an_experiment_is_exported() -> None:
    built = sf.Experiment(
        name="mine",
        rounds=1,
        local=sf.LocalTraining(lr=0.1),
        data=sf.Data(name="digits"),
        partition=sf.Dirichlet(alpha=1.0),
        model=sf.Model(encoder=sf.Mlp(widths=(16,)), head=sf.Orthonormal(), normalize=True),
        loss=sf.MeanSquaredError(),
        algorithm=sf.Algorithm(server=sf.ServerAdam()),
        schedule=sf.Constant(),
        calibration=sf.Ffc(),
    )
    assert sf.run(built, progress=False).rounds == 1


def parts_of(hint: Any) -> Iterator[Any]:
    """The dataclasses that a field may have, and those of their fields."""
    for member in get_args(hint) or (hint,):
        if is_dataclass(member) and isinstance(member, type):
            yield member
            hints = get_type_hints(member)
            for each in fields(member):
                yield from parts_of(hints[each.name])


def test_every_built_in_part_of_an_experiment_is_exported() -> None:
    names = {part.__name__ for part in parts_of(sf.Experiment)}
    assert {"Dirichlet", "Refit", "Krum", "RandomRelu", "Limits"} <= names
    internal = {"InMemoryEncoder"}  # made by encoder=
    assert sorted(name for name in names - internal if name not in sf.__all__) == []


def test_a_recipe_takes_a_method_and_changes() -> None:
    made = sf.recipe("digits", method="fedprox+spherefed", rounds=7, local={"epochs": 3}, calibration={"ridge": 0.5})
    assert (made.rounds, made.local.epochs, made.algorithm.prox_mu) == (7, 3, 0.01)
    assert (made.calibration, made.loss) == (sf.Ffc(ridge=0.5), sf.MeanSquaredError())
    assert sf.recipe("digits", method="fedavg+spherefed").local.lr != sf.recipe("digits").local.lr  # tuned


def test_a_recipe_takes_the_name_of_the_experiment_like_any_other_field() -> None:
    assert sf.recipe("digits", name="scans").name == "scans"
    named = sf.recipe("digits", name="scans", method="fedavg+spherefed", rounds=1)
    assert named.local.lr == sf.recipe("digits", method="fedavg+spherefed").local.lr
    with pytest.warns(UserWarning, match="not tuned: .* recipe 'digits' has this rate"):
        made = sf.run(named, data=sphere_points(), progress=False)
    assert made.experiment.name == "scans"


@pytest.mark.parametrize("given", ["data", "clients"])
def test_data_of_the_caller_do_not_get_the_name_of_the_recipes_data(given: str) -> None:
    inputs = {"data": sphere_points(), "clients": [sphere_points()] * 2}
    made = sf.run(short(), progress=False, **{given: inputs[given]})
    legend = made.plot().axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [made.experiment.name] == ["own-data"]


def test_a_recipe_takes_components_as_values() -> None:
    made = sf.recipe("digits", loss=Focal(gamma=1.0), model={"encoder": TinyConfig(width=4), "normalize": True})
    assert (made.loss, made.model.encoder, made.model.normalize) == (Focal(gamma=1.0), TinyConfig(width=4), True)
    assert sf.recipe("digits", model={"encoder": {"widths": (7, 3), "kind": "mlp"}}).model.encoder == sf.Mlp(
        widths=(7, 3)
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sf.recipe("digit"), "did you mean 'digits'"),
        (lambda: sf.recipe("digits", method="spherefed"), "needs a base algorithm: write fedavg"),
        (lambda: sf.recipe("digits", method="fedpro"), "did you mean 'fedprox'"),
        (lambda: sf.recipe("digits", method="fedavg+sphere"), "did you mean 'spherefed'"),
        (lambda: sf.recipe("digits", round=3), "did you mean 'rounds'"),
        (lambda: sf.recipe("digits", local={"lr": "big"}), "local.lr must be a number"),
        (lambda: sf.compare(sf.recipe("digits"), [], seeds=1), "at least one method"),
        (lambda: sf.compare(short(), {0.1: short()}, seeds=1), "a method must be a name .* got 0.1"),  # type: ignore[dict-item]
        (lambda: sf.tune(sf.recipe("digits"), grid={"a": [1], "b": [2]}), "one path"),
        (lambda: sf.run(short(), test=([[1.0]], [0])), "test= was given without data="),
        (lambda: sf.run(short(), data=([[1.0]], [0]), clients=[]), "either data="),
        (lambda: sf.run(short(), encoder=torch.nn.Linear), "must be an nn.Module, got the class Linear"),
    ],
)
def test_mistakes_are_named(call: Any, words: str) -> None:
    with pytest.raises(sf.SpherefedError, match=words):
        call()


def test_run_gives_the_bits_of_the_command_line(tmp_path: Path) -> None:
    result = sf.run(short(method="fedavg+spherefed"), out=str(tmp_path / "python"), progress=False)
    other = run_to_end(short(method="fedavg+spherefed"), tmp_path / "runner")
    assert result.summary["weights_sha256"] == other["weights_sha256"]
    assert result.path == tmp_path / "python"
    assert result.accuracy == result.accuracies["calibrated"][GLOBAL_TEST]
    assert sf.Result(tmp_path / "python").accuracy == result.accuracy
    assert [record["round"] for record in result.records()] == [1, 2]
    assert repr(result) == f"Result({str(result.path)!r}, accuracy={result.accuracy:.2%}, rounds=2)"
    assert f"{result.accuracy:.2%}" in result._repr_html_()


def test_a_run_without_out_keeps_its_folder_while_the_result_lives() -> None:
    result = sf.run(short(rounds=1), progress=False)
    path = result.path
    assert result.model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    del result
    gc.collect()
    assert not path.parent.exists()


def test_a_result_of_a_comparison_keeps_the_folder() -> None:
    kept = sf.compare(short(rounds=1), ["fedavg"], seeds=1, progress=False)["fedavg"][0]
    gc.collect()
    assert kept.model.num_classes == 10


def test_rounds_are_watched_one_by_one_and_resumed(tmp_path: Path) -> None:
    assert [step.index for step in sf.iter_rounds(short())] == [0, 1]
    for step in sf.iter_rounds(short(rounds=3), out=tmp_path / "run"):
        if step.index == 1:
            break
    result = sf.run(short(rounds=3), out=tmp_path / "run", resume=True, progress=False)
    whole = sf.run(short(rounds=3), progress=False)
    assert result.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_comparison_gives_a_table_and_a_figure() -> None:
    made = sf.compare(short(), ["fedavg", "fedavg+ffc"], tuned={"fedavg": {"local.lr": 0.2}}, seeds=2, progress=False)
    assert [(r["method"], r["seed"]) for r in made.records()] == [
        ("fedavg", 0), ("fedavg", 1), ("fedavg+ffc", 0), ("fedavg+ffc", 1),
    ]  # fmt: skip
    assert made["fedavg"][0].experiment.local.lr == 0.2
    assert made.accuracy.keys() == {"fedavg", "fedavg+ffc"}
    assert len(made.curves()) == 8
    lines = made.plot().axes[0].get_legend_handles_labels()[1]
    assert lines == ["fedavg", "fedavg+ffc", "fedavg+ffc, calibrated"]
    assert "fedavg+ffc" in repr(made)
    assert "<td>fedavg</td>" in made._repr_html_()


def test_a_comparison_takes_experiments_by_name() -> None:
    mine = replace(short(rounds=1), loss=Focal())
    made = sf.compare(short(), {"usual": short(rounds=1), "focal": mine}, seeds=1, progress=False)
    assert list(made.results) == ["usual", "focal"]


CELL = """
from dataclasses import dataclass
from torch.nn import functional

@dataclass(frozen=True)
class Mine:
    def __call__(self, scores, labels):
        return functional.cross_entropy(SCALE * scores, labels)
"""


def test_own_components_of_one_name_and_two_classes_are_trained_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where a cell that is changed and executed again defines another class of the same name."""
    notebook = ModuleType("own_notebook")
    monkeypatch.setitem(sys.modules, "own_notebook", notebook)
    made = []
    for scale in ("1.0", "20.0"):
        exec(CELL.replace("SCALE", scale), notebook.__dict__)
        made.append(short(loss=notebook.Mine()))
    first, second = made
    assert first.digest() == second.digest()
    compared = sf.compare(first, {"first": first, "second": second, "again": second}, seeds=1, progress=False)
    found = {name: results[0].summary["weights_sha256"] for name, results in compared.results.items()}
    assert found["second"] == found["again"] != found["first"]
    assert found["second"] == sf.run(second, progress=False).summary["weights_sha256"]


def test_methods_without_tuned_values_are_named() -> None:
    with pytest.warns(UserWarning, match=r"not tuned: fedavg \(local.lr 0.3\), fedavg\+babu"):
        sf.compare(short(rounds=1, local={"lr": 0.3}), ["fedavg", "fedavg+babu"], seeds=1, progress=False)


def sphere_points() -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes in 64 dimensions."""
    labels = torch.arange(60) % 2
    return torch.randn(60, 64, generator=torch.Generator().manual_seed(0)) + labels[:, None], labels


@pytest.mark.parametrize("given", ["data", "encoder", "clients"])
def test_the_rates_of_a_recipe_are_not_tuned_for_the_data_or_the_encoder_of_the_caller(given: str) -> None:
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12))
    inputs = {"data": sphere_points(), "encoder": encoder, "clients": [sphere_points()] * 2}
    recipe = sf.recipe("digits", rounds=1)
    rates = {method: sf.recipe("digits", method=method).local.lr for method in ("fedavg", "fedavg+spherefed")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = sf.compare(recipe, list(rates), seeds=2, progress=False, **{given: inputs[given]})
    (warning,) = caught
    listed = ", ".join(f"{method} (local.lr {rate:g})" for method, rate in rates.items())
    assert str(warning.message).startswith(f"not tuned: {listed}; recipe 'digits' has these rates for its own data")
    assert "sf.tune(…)" in str(warning.message)
    assert Path(warning.filename) == Path(__file__)
    assert {method: made[method][0].experiment.local.lr for method in rates} == rates  # they are used all the same


def test_values_of_the_caller_are_tuned_for_the_data_of_the_caller() -> None:
    tuned = {"fedavg": {"local.lr": 0.1}, "fedavg+spherefed": {"local.lr": 0.5}}
    made = sf.compare(
        sf.recipe("digits", rounds=1), list(tuned), seeds=1, tuned=tuned, data=sphere_points(), progress=False
    )  # a warning would be an error
    assert made["fedavg+spherefed"][0].experiment.local.lr == 0.5


def test_experiments_by_name_get_the_tuned_values_of_their_name() -> None:
    made, tuned = {"mine": short(rounds=1), "other": short(rounds=1)}, {"mine": {"local.lr": 0.25}}
    with pytest.warns(UserWarning, match=r"not tuned: other \(local.lr 0.1\)"):
        compared = sf.compare(short(), made, seeds=1, tuned=tuned, progress=False)
    assert {name: results[0].experiment.local.lr for name, results in compared.results.items()} == {
        "mine": 0.25,
        "other": short().local.lr,
    }
    with pytest.raises(sf.ConfigError, match=r"tuned= has values for fedavg, and methods= has mine, other"):
        sf.compare(short(), made, seeds=1, tuned={"fedavg": {"local.lr": 0.25}}, progress=False)


def test_a_run_on_other_data_at_a_rate_that_the_recipe_chose_for_a_method_says_so() -> None:
    recipe = sf.recipe("digits", method="fedavg+spherefed", rounds=1)
    with pytest.warns(
        UserWarning, match=r"not tuned: fedavg\+spherefed \(local.lr 0.3\); recipe 'digits' has this rate"
    ):
        sf.run(recipe, data=sphere_points(), progress=False)
    with pytest.warns(UserWarning, match=r"not tuned: fedavg\+spherefed"):
        list(sf.iter_rounds(recipe, data=sphere_points()))
    sf.run(recipe, progress=False)  # the recipe's own data: a warning would be an error
    chosen = sf.recipe("digits", method="fedavg+spherefed", rounds=1, local={"lr": 0.2})
    sf.run(chosen, data=sphere_points(), progress=False)
    frozen = sf.recipe("digits", method="fedavg+spherefed", rounds=0, model={"frozen": True})
    sf.run(frozen, data=sphere_points(), progress=False)  # without rounds there is no rate


def test_recipes_are_compared_at_their_tuned_rates() -> None:
    made = sf.compare(sf.recipe("digits", rounds=1), ["fedavg", "fedavg+spherefed"], seeds=1, progress=False)
    tuned = sf.recipe("digits", method="fedavg+spherefed").local.lr
    assert made["fedavg+spherefed"][0].experiment.local.lr == tuned


CALLS: dict[str, Callable[[bool], object]] = {
    "run": lambda progress: sf.run(short(), progress=progress),
    "compare": lambda progress: sf.compare(short(), ["fedavg"], seeds=1, progress=progress),
    "tune": lambda progress: sf.tune(short(), ["fedavg"], {"local.lr": [0.03, 0.1, 0.3]}, seeds=1, progress=progress),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_script_without_a_terminal_writes_lines_about_its_progress(
    call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_progress, "SECONDS_PER_LOOK", 0.001)
    monkeypatch.setattr(api_progress, "SECONDS_PER_LINE", 0.001)
    CALLS[call](True)
    assert re.search(r"\d/\d+ rounds, 0:00:\d\d.*seed \d+: ", capsys.readouterr().err)
    CALLS[call](False)
    assert capsys.readouterr().err == ""


def test_tuning_chooses_on_a_validation_split(tmp_path: Path) -> None:
    made = sf.tune(short(rounds=1), ["fedavg"], {"local.lr": [0.01, 0.1, 0.3]}, seeds=1)
    tried = {record["local.lr"]: record["trained"] for record in made.records()}
    assert made.chosen["fedavg"]["local.lr"] == max(tried, key=lambda value: tried[value])
    best = made.chosen["fedavg"]["local.lr"]
    assert repr(made) == f"Tuned(fedavg: local.lr = {best:g}, best of {len(tried)})"
    made.save(tmp_path / "tuned.json")
    for tuned in (made, tmp_path / "tuned.json"):
        compared = sf.compare(short(rounds=1), ["fedavg"], tuned=tuned, seeds=1, progress=False)
        assert compared["fedavg"][0].experiment.local.lr == made.chosen["fedavg"]["local.lr"]


def test_frame_is_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = sf.run(short(), progress=False).frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["round"]) == [1, 2]


def test_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sf.ConfigError, match=r"pip install -e '\.\[pandas\]'"):
        sf.run(short(rounds=1), progress=False).frame()


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, spherefed; print('torch' in sys.modules, spherefed.__version__)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", sf.__version__]


def test_python_m_spherefed_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "spherefed", "--version"], capture_output=True, text=True, check=True)
    assert sf.__version__ in done.stdout


def test_signatures_name_their_inputs() -> None:
    for function in (sf.run, sf.iter_rounds, sf.compare, sf.tune):
        assert "inputs" in inspect.signature(function).parameters


def test_a_comparison_names_the_run_that_failed_and_those_that_diverged() -> None:
    at = {rate: short(local={"epochs": 1, "lr": float(rate)}) for rate in ("0.1", "5", "1e9")}
    with pytest.warns(
        UserWarning, match=r"^1e9, seed 0: round 0: no client gave .*; the other 2 of 4 runs are finished"
    ):
        found = sf.compare(short(), {rate: at[rate] for rate in ("1e9", "0.1")}, seeds=2, progress=False)
    assert {name: [r.experiment.seed for r in results] for name, results in found.results.items()} == {"0.1": [0, 1]}
    assert "0.1" in repr(found)
    with pytest.raises(sf.FederationError, match=r"^1e9, seed 0: round 0: no client gave a usable reply"):
        sf.compare(short(), {"1e9": at["1e9"]}, seeds=2, progress=False)
    with pytest.warns(UserWarning, match="the training diverged") as caught:
        sf.compare(short(), {rate: at[rate] for rate in ("0.1", "5")}, seeds=2, progress=False)
    begin = [str(each.message).partition(" the training diverged: its loss is")[0] for each in caught]
    assert set(begin) <= {"5, seed 0:", "5, seed 1:"}


def test_a_training_that_diverged_says_so() -> None:
    with pytest.warns(UserWarning, match=r"diverged: its loss is .* lower local.lr, which is 5"):
        sf.run(short(local={"epochs": 1, "lr": 5.0}), progress=False)
