"""Trackers: what they are told is read back with the real tools, and none of them can stop or change a run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spherefed as sf
from spherefed.runs.round_log import read_lines
from spherefed.tracking import following, tensorboard
from spherefed.tracking.following import tracked
from spherefed.tracking.values import read_new_lines
from support.command_line import spherefed

METHOD = "fedavg+spherefed"


def short(**changes: Any) -> sf.Experiment:
    return sf.recipe("digits", method=METHOD, **{"rounds": 2, "local": {"epochs": 1}, **changes})


# TensorBoard


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / tensorboard.FOLDER))
    found.Reload()
    return found


def text(found: Any, tag: str) -> str:
    (tensor,) = found.Tensors(f"{tag}/text_summary")
    return str(tensor.tensor_proto.string_val[0].decode())


def test_tensorboard_reads_the_rounds_of_a_run(tmp_path: Path) -> None:
    result = sf.run(short(rounds=3), out=tmp_path / "run", progress=False, track="tensorboard")
    found = events(result.path)
    lines = read_lines(result.path / "rounds.jsonl")
    for name, expected in {
        "loss": [line["loss"] for line in lines],
        "lr": [line["lr"] for line in lines],
        "accuracy/global_model/global_test": [line["accuracy"]["global_model/global_test"] for line in lines],
        "bytes_up": [sum(line["bytes_up"].values()) for line in lines],
        "num_clients": [len(line["clients"]) for line in lines],
    }.items():
        scalars = found.Scalars(name)
        assert [each.step for each in scalars] == [1, 2, 3], name
        assert [each.value for each in scalars] == pytest.approx(expected), name
    (final,) = found.Scalars("final/accuracy/calibrated/global_model/global_test")
    assert final.value == pytest.approx(result.accuracy)


def test_tensorboard_reads_parameters_and_the_table(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2

    result = sf.run(short(), out=tmp_path / "run", progress=False, track="tensorboard")
    found = events(result.path)
    assert f"{100 * result.accuracy:.2f}" in text(found, "table")
    content = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    parameters = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert parameters["local.lr"].string_value == str(short().local_training.lr)
    assert parameters["model.head.kind"].string_value == "orthonormal"


def test_consistency_is_tracked_where_it_is_measured(tmp_path: Path) -> None:
    learned = sf.recipe("digits", rounds=2, local={"epochs": 1})
    result = sf.run(learned, out=tmp_path / "run", progress=False, track="tensorboard")
    measured = [line["consistency"] for line in read_lines(result.path / "rounds.jsonl")]
    names = [name for name in events(result.path).Tags()["scalars"] if name.startswith("consistency")]
    assert measured
    assert names


def test_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with tracked("tensorboard", out) as follow:
        for step in sf.iter_rounds(short(rounds=4), out=out):
            follow(out)
            if step.index == 1:
                break
    assert [each.step for each in events(out).Scalars("loss")] == [1, 2]
    sf.run(short(rounds=4), out=out, resume=True, progress=False, track="tensorboard")
    assert [each.step for each in events(out).Scalars("loss")] == [1, 2, 3, 4]


def test_a_comparison_tracks_every_run_and_its_table(tmp_path: Path) -> None:
    plain = sf.recipe("digits", rounds=1, local={"epochs": 1})
    out = tmp_path / "many"
    methods = {"fedavg": plain, "calibrated": replace(plain, calibration=sf.Ffc())}
    sf.compare(methods=methods, experiment=plain, seeds=2, out=out, progress=False, track="tensorboard")
    for method in methods:  # the second one takes over the rounds of the first
        for seed in (0, 1):
            assert len(events(out / method / f"seed-{seed}").Scalars("loss")) == 1
    assert "FedAvg + FFC" in text(events(out), "table")


def test_the_command_line_tracks_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"run digits --set rounds=1 --set local.epochs=1 --out {tmp_path / 'run'} --track tensorboard"
    assert spherefed(monkeypatch, *words.split()) == 0
    assert len(events(tmp_path / "run").Scalars("loss")) == 1


# MLflow


@pytest.mark.slow
def test_mlflow_reads_a_run_and_a_resumed_one_without_the_network(tmp_path: Path) -> None:
    """In a process without sockets; a first run stops after two rounds and is resumed."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_NETWORK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert found["runs"] == 1
    assert found["status"] == "FINISHED"
    assert found["loss"] == [[line["round"] + 1, pytest.approx(line["loss"])] for line in lines]
    assert len(lines) == 4
    assert found["metrics"]["bytes_up"] == sum(lines[-1]["bytes_up"].values())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    accuracy = result["accuracy"]["calibrated"]["global_model/global_test"]
    assert found["metrics"]["final/accuracy/calibrated/global_model/global_test"] == pytest.approx(accuracy)
    assert found["parameters"]["model.head.kind"] == "orthonormal"
    assert found["artifacts"] == ["experiment.json", "result.json", "table.md"]
    assert f"{100 * accuracy:.2f}" in found["table"]


WITHOUT_NETWORK = """
import json, socket
from pathlib import Path

def refuse(*args, **kwargs):
    raise AssertionError("the network was used")

socket.socket.connect = socket.getaddrinfo = refuse

import spherefed as sf
from spherefed.tracking.following import tracked

experiment = sf.recipe("digits", method="fedavg+spherefed", rounds=4, local={"epochs": 1})
out = Path("run")
with tracked("mlflow", out) as follow:
    for step in sf.iter_rounds(experiment, out=out):
        follow(out)
        if step.index == 1:
            break
sf.run(experiment, out=out, resume=True, progress=False, track="mlflow")

from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
(named,) = [each for each in client.search_experiments() if each.name == "digits"]
runs = client.search_runs([named.experiment_id])
(run,) = runs
identity = run.info.run_id
files = sorted(each.path for each in client.list_artifacts(identity))
folder = Path(client.download_artifacts(identity, "table.md"))
print(json.dumps({
    "runs": len(runs),
    "status": run.info.status,
    "loss": sorted([m.step, m.value] for m in client.get_metric_history(identity, "loss")),
    "metrics": run.data.metrics,
    "parameters": run.data.params,
    "artifacts": files,
    "table": folder.read_text(),
}))
"""


# A tracker never stops a run


class Broken:
    """A tracker that fails at one step."""

    def __init__(self, step: str) -> None:
        self.step, self.calls = step, 0

    def _fail(self, step: str) -> None:
        if step == self.step:
            self.calls += 1
            raise ConnectionError("no answer")

    def start(self, experiment: Any) -> None:
        self._fail("start")

    def log(self, values: Any, step: int) -> None:
        self._fail("log")

    def finish(self, values: Any, table: str, run: Path) -> None:
        self._fail("finish")

    def close(self, *, finished: bool) -> None:
        self._fail("close")


@pytest.mark.parametrize("step", ["start", "log", "finish", "close"])
def test_a_tracker_that_fails_never_stops_a_run(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(step)
    monkeypatch.setitem(following.TRACKERS, "broken", (lambda run, name: broken, tensorboard.write_table, ()))
    result = sf.run(short(), out=tmp_path / "run", progress=False, track="broken")
    plain = sf.run(short(), progress=False)
    assert result.summary["weights_sha256"] == plain.summary["weights_sha256"]
    assert broken.calls == 1, "it is not asked again"
    assert [record.message for record in caplog.records] == [
        "broken failed, and the run goes on without it: ConnectionError: no answer"
    ]


def test_an_error_of_the_run_itself_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(sf.RunError, match="holds a run already"):  # noqa: PT012 - the second run fails
        sf.run(short(rounds=1), out=tmp_path, progress=False, track="tensorboard")
        sf.run(short(rounds=1), out=tmp_path, progress=False, track="tensorboard")


def test_mistakes_are_named_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sf.ConfigError, match="track must be one of tensorboard, mlflow, got 'wandb'"):
        sf.run(short(), out=tmp_path / "run", track="wandb")
    with pytest.raises(sf.ConfigError, match="give out="):
        sf.run(short(), track="tensorboard")
    monkeypatch.setattr(following, "find_spec", lambda name: None)
    with pytest.raises(sf.ConfigError, match=r"pip install -e '\.\[mlflow\]'"):
        sf.run(short(), out=tmp_path / "run", track="mlflow")
    assert not (tmp_path / "run").exists()


def test_lines_are_read_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert read_new_lines(path, 0) == ([], 0)
    path.write_bytes(b'{"a": 1}\n{"a"')
    lines, offset = read_new_lines(path, 0)
    assert lines == [{"a": 1}]
    assert read_new_lines(path, offset) == ([], offset)
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    lines, offset = read_new_lines(path, offset)
    assert lines == [{"a": 2}, {"a": 3}]
    assert read_new_lines(path, offset) == ([], offset)
