"""A user's own components: found by name, checked, recorded with their sources, and found again."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spherefed.client.evaluation import GLOBAL_TEST, LOCAL_TEST_BY_CLIENTS, PERSONAL_TEST_BY_CLIENTS
from spherefed.components import find_component, only_components
from spherefed.data.sources import load as load_data
from spherefed.deployment.folder import read_site
from spherefed.deployment.handshake import Handshake
from spherefed.deployment.roles import _node_config
from spherefed.deployment.site import Site, answer
from spherefed.errors import ConfigError, DataError, ModelError, RunError
from spherefed.experiment import Experiment, Model, experiment_from_json, experiment_to_json, with_settings
from spherefed.losses import CrossEntropy
from spherefed.nn.encoders import CallableEncoder
from spherefed.recipes.experiments import digits
from spherefed.runs.loading import evaluate_run, load
from spherefed.runs.runner import Engine, run, run_to_end
from support.own.encoders import TinyConfig
from support.own.loss import Focal

OWN = Path(__file__).parent / "support" / "own"
SHORT = ["rounds=2", "local.epochs=1", "partition.kind=iid", "partition.clients=4"]


def short(*settings: str) -> Experiment:
    return with_settings(digits(), [*SHORT, *settings])


def plain(experiment: Experiment) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(experiment_to_json(experiment))
    return made


ENCODERS = {
    "class": '{kind = "support.own.encoders:TinyNet", width = 12}',
    "dataclass": '{kind = "support.own.encoders:TinyConfig", width = 12}',
    "function": '{kind = "support.own.encoders:sized", width = 12}',
    "timm": '{kind = "support.own.encoders:create_model", model_name = "tiny", in_chans = 1, num_classes = 0}',
}


@pytest.mark.slow
@pytest.mark.parametrize("given", ENCODERS.values(), ids=ENCODERS)
def test_an_own_encoder_trains_and_is_loaded_again(given: str, tmp_path: Path) -> None:
    experiment = short(f"model.encoder={given}")
    assert experiment_from_json(experiment_to_json(experiment)) == experiment
    assert len({experiment, experiment_from_json(experiment_to_json(experiment))}) == 1
    result = run_to_end(experiment, tmp_path / "run")
    counts = evaluate_run(tmp_path / "run", "digits")
    assert counts.accuracy == pytest.approx(result["accuracy"]["trained"][GLOBAL_TEST])
    assert load(tmp_path / "run")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.slow
def test_a_transformers_model_is_an_encoder(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    experiment = short('model.encoder={kind = "support.own.encoders:TinyTransformer", hidden = 16}', "rounds=1")
    assert run_to_end(experiment, tmp_path / "run")["rounds"] == 1
    assert load(tmp_path / "run")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.slow
def test_a_class_and_the_function_that_makes_the_same_net_give_the_same_bits(tmp_path: Path) -> None:
    digests = {
        run_to_end(short(f"model.encoder={ENCODERS[name]}"), tmp_path / name)["weights_sha256"]
        for name in ("class", "dataclass", "function")
    }
    assert len(digests) == 1


def test_the_values_of_own_components_are_written_by_name_and_compared_by_value() -> None:
    experiment = replace(short(), loss=Focal(gamma=1.5), model=Model(encoder=TinyConfig(width=5)))
    assert plain(experiment)["loss"] == {"kind": "support.own.loss:Focal", "gamma": 1.5}
    assert plain(experiment)["model"]["encoder"] == {"kind": "support.own.encoders:TinyConfig", "width": 5}
    assert experiment_from_json(experiment_to_json(experiment)) == experiment
    assert experiment.digest() != replace(experiment, loss=Focal(gamma=2.5)).digest()
    assert set(experiment.own_components()) == {"support.own.loss:Focal", "support.own.encoders:TinyConfig"}


def test_a_new_kind_resets_the_options_of_the_old_one() -> None:
    experiment = short("model.encoder.kind=support.own.encoders:TinyNet", "model.encoder.width=12")
    assert experiment.model.encoder == CallableEncoder("support.own.encoders:TinyNet", (("width", 12),))
    assert with_settings(experiment, ["model.encoder.kind=mlp"]).model.encoder == digits().model.encoder


PARTS = {
    "loss": "loss={kind = 'support.own.loss:Focal', gamma = 1.0}",
    "loss function": "loss={kind = 'support.own.loss:focal', gamma = 1.0}",
    "server": "algorithm.server.kind=support.own.server:SignStep",
    "partition": "partition={kind = 'support.own.partition:EvenAndOdd', clients = 6}",
    "calibration": "calibration.kind=support.own.calibration:ClassMeans",
    "head": "model.head.kind=support.own.others:Identity",
    "schedule": "schedule={kind = 'support.own.others:Halving', every = 2}",
    "correction": "algorithm.correction.kind=support.own.others:Decay",
}


@pytest.mark.parametrize("setting", PARTS.values(), ids=PARTS)
def test_every_part_may_be_the_users_own_and_takes_part_in_the_run(setting: str, tmp_path: Path) -> None:
    result = run_to_end(short(setting), tmp_path / "own")
    usual = run_to_end(short(), tmp_path / "usual")
    assert result["weights_sha256"] != usual["weights_sha256"]
    recorded = json.loads((tmp_path / "own" / "environment.json").read_text())["components"]
    (record,) = recorded.values()
    assert record["sha256"] == hashlib.sha256(Path(record["file"]).read_bytes()).hexdigest()
    assert "components" not in json.loads((tmp_path / "usual" / "environment.json").read_text())


def test_the_focal_loss_without_focus_is_cross_entropy(tmp_path: Path) -> None:
    own = run_to_end(short("loss={kind = 'support.own.loss:Focal', gamma = 0.0}", "stack=0"), tmp_path / "own")
    usual = run_to_end(replace(short("stack=0"), loss=CrossEntropy()), tmp_path / "usual")
    torch.testing.assert_close(
        load(tmp_path / "own").head.weight, load(tmp_path / "usual").head.weight, rtol=1e-4, atol=1e-5
    )
    assert own["accuracy"]["trained"] == pytest.approx(usual["accuracy"]["trained"], abs=0.02)


def test_a_loss_of_torch_is_a_loss(tmp_path: Path) -> None:
    own = short("loss={kind = 'torch.nn:CrossEntropyLoss', label_smoothing = 0.1}")
    assert run_to_end(own, tmp_path / "own")["accuracy"]["trained"][GLOBAL_TEST] > 0.3


def test_an_own_personalization_is_applied_on_every_client(tmp_path: Path) -> None:
    experiment = short("data.held_out=0.2", "personalization.kind=support.own.others:Shrink")
    accuracy = run_to_end(experiment, tmp_path / "run")["accuracy"]["trained"]
    # A head times a positive number gives the same answers.
    assert accuracy[PERSONAL_TEST_BY_CLIENTS] == pytest.approx(accuracy[LOCAL_TEST_BY_CLIENTS])


RANDOM_PARTS = {
    "head": ("model.head.kind=support.own.random_parts:RandomHead", "loss.kind=mse"),
    "loss": ("loss.kind=support.own.random_parts:NoisyLoss",),
    "server": ("algorithm.server.kind=support.own.random_parts:NoisyStep",),
    "calibration": ("calibration.kind=support.own.random_parts:NoisyMeans",),
    "solve of a calibration": ("calibration.kind=support.own.random_parts:NoisySolve",),
    "calibration between rounds": ("calibration.kind=support.own.random_parts:NoisyMeans", "calibrate_every=1"),
    "calibration and a start before round 0": (
        "calibration.kind=support.own.random_parts:NoisyMeans",
        "model.head.kind=ridge-start",
        "model.normalize=true",
    ),
    "personalization": ("personalization.kind=support.own.random_parts:NoisyTuning", "data.held_out=0.2"),
}


@pytest.mark.parametrize("settings", RANDOM_PARTS.values(), ids=RANDOM_PARTS)
def test_own_parts_that_draw_from_torch_give_equal_runs_and_resumed_runs(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    experiment = short(*settings)
    stopped = run(experiment, tmp_path / "resumed")
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    torch.manual_seed(1)
    results = [run_to_end(experiment, tmp_path / name, resume=name == "resumed") for name in ("resumed", "again")]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert run_to_end(replace(experiment, seed=1), tmp_path / "other")["weights_sha256"] != results[0]["weights_sha256"]


def test_a_loaded_model_has_the_own_head_of_its_run(tmp_path: Path) -> None:
    result = run_to_end(short(*RANDOM_PARTS["head"]), tmp_path / "run")
    assert evaluate_run(tmp_path / "run", "digits").accuracy == result["accuracy"]["trained"][GLOBAL_TEST]


@pytest.mark.parametrize("name", ["loss", "server", "partition", "calibration"])
def test_examples_of_own_components_are_short(name: str) -> None:
    assert len((OWN / f"{name}.py").read_text().splitlines()) <= 25


def test_an_own_function_loads_the_data(tmp_path: Path) -> None:
    data = load_data("support.own.others:two_blobs")
    assert data.classes == ("left", "right")
    result = run_to_end(short("data.name=support.own.others:two_blobs", "local.epochs=10"), tmp_path / "run")
    assert result["accuracy"]["trained"][GLOBAL_TEST] > 0.9
    assert evaluate_run(tmp_path / "run", "support.own.others:two_blobs").accuracy > 0.9


MISTAKES = {
    "no module": ("loss.kind=nowhere:Loss", ["loss.kind", "'nowhere'", "PYTHONPATH", "expected a frozen dataclass"]),
    "no attribute": ("loss.kind=support.own.loss:Fokal", ["'Fokal'", "support.own.loss", "did you mean 'Focal'?"]),
    "not a class": (
        "schedule.kind=support.own.encoders:NUMBER",
        ["a int", "factor(round_index, rounds)"],
    ),
    "missing method": ("schedule.kind=support.own.loss:Focal", ["a dataclass without factor", "factor("]),
    "not frozen": ("schedule.kind=support.own.others:NotFrozen", ["frozen=True"]),
    "unknown field": ("loss={kind = 'support.own.loss:Focal', gama = 1.0}", ["loss.gama", "did you mean 'gamma'?"]),
    "wrong type": ("loss={kind = 'support.own.loss:Focal', gamma = 'big'}", ["loss.gamma must be a number", "'big'"]),
    "table as option": ("model.encoder={kind = 'support.own.encoders:sized', a = {b = 1}}", ["model.encoder.a"]),
    "misspelt kind": ("loss.kind=cee", ["package.module:Name"]),
    "no union": ("data.kind=a:b", ["data.kind"]),
}


@pytest.mark.parametrize(("setting", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_the_module_the_attribute_and_what_was_expected(setting: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        short(setting)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_module_that_cannot_be_imported_is_an_error_of_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_broken.py").write_text("import no_such_dependency\n")
    (tmp_path / "own_syntax.py").write_text("def broken(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'own_broken' needs 'no_such_dependency', which is not installed"):
        short("loss.kind=own_broken:Loss")
    with pytest.raises(ConfigError, match="'own_syntax' cannot be imported: SyntaxError"):
        short("loss.kind=own_syntax:Loss")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.encoder={kind = 'support.own.encoders:TinyNet', widht = 3}", "cannot be built with widht"),
        ("model.encoder.kind=support.own.encoders:not_a_module", "returned a int; expected an nn.Module"),
        ("model.encoder={kind = 'support.own.encoders:TinyNet', inputs = 3}", r"cannot read inputs of \(1, 8, 8\)"),
        ("model.encoder={kind = 'torch.nn:Flatten', start_dim = 0}", "one row of features per input"),
    ],
)
def test_an_encoder_that_does_not_fit_says_so(setting: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        run_to_end(short(setting), tmp_path / "run")


def test_a_partition_that_loses_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"own.others:Forgetful' must give each of 1438 examples to exactly one"):
        run_to_end(short("partition.kind=support.own.others:Forgetful"), tmp_path / "run")


def test_only_listed_components_are_imported() -> None:
    with only_components(["support.own.loss:Focal"]):
        assert short("loss.kind=support.own.loss:Focal").loss == Focal()
        for setting in ("loss.kind=support.own.loss:focal", "loss.kind=os:system", "model.encoder.kind=os:system"):
            with pytest.raises(ConfigError, match=r"not allowed here: site.toml lists support.own.loss:Focal"):
                short(setting)
        with pytest.raises(ConfigError, match="not allowed"):
            load_data("support.own.others:two_blobs")
    assert find_component("support.own.loss:focal", "loss", "a loss")


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder, which is not on the Python path."""
    file = tmp_path / "own_net_in_folder.py"
    file.write_text((OWN / "encoders.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield file
    sys.modules.pop("own_net_in_folder", None)


def test_a_component_that_has_changed_stops_resume_and_warns_on_load(own_file: Path, tmp_path: Path) -> None:
    experiment = short("model.encoder.kind=own_net_in_folder:TinyNet", "rounds=3")
    rounds = run(experiment, tmp_path / "run")
    next(rounds)
    rounds.close()
    own_file.write_text(own_file.read_text() + "# changed\n")
    with pytest.raises(RunError, match=r"began with other components: own_net_in_folder:TinyNet.*has SHA-256"):
        run_to_end(experiment, tmp_path / "run", resume=True)
    own_file.write_text(own_file.read_text().removesuffix("# changed\n"))
    run_to_end(experiment, tmp_path / "run", resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "run")
    own_file.write_text(own_file.read_text() + "# changed\n")
    with pytest.warns(UserWarning, match="components have changed since the run"):
        load(tmp_path / "run")


@pytest.mark.slow
def test_workers_find_components_and_give_the_same_bits(tmp_path: Path) -> None:
    experiment = short(f"model.encoder={ENCODERS['class']}", PARTS["loss"], PARTS["server"])
    alone = run_to_end(experiment, tmp_path / "alone")
    workers = run_to_end(experiment, tmp_path / "workers", engine=Engine(workers=2))
    assert alone["weights_sha256"] == workers["weights_sha256"]


@pytest.mark.slow
def test_the_command_line_runs_an_own_file_and_resumes_it_after_sigkill(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text((OWN / "encoders.py").read_text())
    settings = [f"--set={s}" for s in (*SHORT, "rounds=40", "model.encoder.kind=mynet:TinyNet", "local.epochs=3")]
    command = [sys.executable, "-m", "spherefed.cli", "run", "digits", *settings]

    def spherefed(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    killed = spherefed("--out", "killed")
    rounds = tmp_path / "killed" / "rounds.jsonl"
    ends = time.monotonic() + 120
    while time.monotonic() < ends and not (rounds.exists() and rounds.read_text().count("\n") >= 2):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "result.json").exists()
    for words in (["--out", "killed", "--resume", "--workers", "2"], ["--out", "whole"]):
        process = spherefed(*words)
        printed, _ = process.communicate(timeout=180)
        assert process.returncode == 0, printed
    digests = [json.loads((tmp_path / n / "result.json").read_text())["weights_sha256"] for n in ("killed", "whole")]
    assert digests[0] == digests[1]
    elsewhere = subprocess.run(
        [sys.executable, "-m", "spherefed.cli", "evaluate", str(tmp_path / "whole"), "--data", "digits"],
        cwd=tmp_path.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert elsewhere.returncode == 2
    assert "there is no module 'mynet'" in elsewhere.stderr


def test_data_in_memory_of_an_earlier_process_are_named_in_the_error() -> None:
    with pytest.raises((ConfigError, DataError), match="pass the same data again"):
        load_data("memory:0123456789abcdef")


def test_a_site_uses_only_the_components_that_it_lists(tmp_path: Path) -> None:
    experiment = experiment_to_json(short(PARTS["loss"], "stack=0"))
    listed = Site(client=0, data="digits", allow="support.own.loss:Focal, support.own.server:SignStep")
    for site in (Site(client=0, data="digits"), Site(client=0, data="digits", allow="support.own.loss:focal")):
        with pytest.raises(ConfigError, match=r"'support.own.loss:Focal' is not allowed here"):
            answer(Handshake(), experiment, "run", site)
    reply = answer(Handshake(), experiment, "run", listed)
    digest = hashlib.sha256((OWN / "loss.py").read_bytes()).hexdigest()
    assert json.loads(reply.properties)["components"] == f"support.own.loss:Focal {digest[:16]}"


def test_site_toml_lists_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        'server = "127.0.0.1:9092"\nclient = 0\nsite = "north"\ninsecure = true\nallow = ["a.b:C", "d:E"]\n'
    )
    config = tomllib.loads(_node_config(read_site(tmp_path)))
    assert Site.from_config(config).allow == "a.b:C,d:E"
