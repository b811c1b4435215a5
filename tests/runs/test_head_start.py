"""Training that starts from the ridge head of all clients' features: one upload before round 0."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spherefed.calibration import FfcGcv
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, Model
from spherefed.losses import Loss, MeanSquaredError
from spherefed.messages import LEARNED_HEAD
from spherefed.nn.encoders import Flatten
from spherefed.nn.feature_maps import RandomFourier
from spherefed.nn.heads import Orthonormal, RidgeStart
from spherefed.runs.directory import RunDirectory
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run, run_to_end
from spherefed.server.algorithms import fedrep

MODEL = Model(
    encoder=Flatten(),
    frozen=True,
    feature_map=RandomFourier(dim=64, bandwidth=0.5),
    head=RidgeStart(),
    normalize=True,
)


def started(lr: float = 0.1, **changes: Any) -> Experiment:
    local = LocalTraining(lr=lr, epochs=1, momentum=0.0, weight_decay=0.0)
    return Experiment(**{"name": "start", "rounds": 2, "local": local, "model": MODEL, **changes})


@pytest.mark.parametrize(("changes", "scale"), [({}, 10.0), ({"loss": MeanSquaredError()}, 1.0)])
def test_round_0_starts_from_the_one_shot_head_times_the_scale(
    changes: dict[str, Loss], scale: float, tmp_path: Path
) -> None:
    model = replace(MODEL, head=Orthonormal())
    one_shot = Experiment(name="one-shot", rounds=0, model=model, calibration=FfcGcv())
    run_to_end(one_shot, tmp_path / "one-shot")
    result = run_to_end(started(lr=1e-30, **changes), tmp_path / "started")  # no step moves a float32
    head = RunDirectory(tmp_path / "one-shot").model().head
    assert head is not None
    trained = RunDirectory(tmp_path / "started").model().params[LEARNED_HEAD]
    assert torch.equal(trained, head["weight"] * scale)
    assert result["head"]["start"]["scale"] == scale
    assert result["traffic"]["start"]["up"] == pytest.approx(8 * (64 * 65 / 2 + 64 * 10 + 2), abs=64)


def test_training_goes_on_from_there(tmp_path: Path) -> None:
    result = run_to_end(started(lr=0.5, rounds=3, partition=Iid(clients=4)), tmp_path)
    lines = read_lines(tmp_path / "rounds.jsonl")
    assert lines[0]["loss"] < 1.0  # ln 10 = 2.3 is the loss of a head that knows nothing
    assert result["accuracy"]["trained"][GLOBAL_TEST] > 0.9
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_a_stopped_run_resumes_to_the_same_bits_and_a_copied_training_keeps_its_start(tmp_path: Path) -> None:
    whole = run_to_end(started(), tmp_path / "whole")
    for _ in run(started(), tmp_path / "stopped"):
        break
    resumed = run_to_end(started(), tmp_path / "stopped", resume=True)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["traffic"] == whole["traffic"]
    calibrated = started(calibration=FfcGcv())
    for _ in run(calibrated, tmp_path / "copied", trained=tmp_path / "whole"):
        pass
    assert RunDirectory(tmp_path / "copied").result()["traffic"]["start"] == whole["traffic"]["start"]


def test_a_run_killed_before_its_first_checkpoint_repeats_the_upload(tmp_path: Path) -> None:
    whole = run_to_end(started(), tmp_path)
    for name in ("checkpoint.safetensors", "checkpoint-2.safetensors", "result.json"):
        (tmp_path / name).unlink(missing_ok=True)
    assert run_to_end(started(), tmp_path, resume=True)["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: started(rounds=0, calibration=FfcGcv()), "head 'ridge-start' starts a training"),
        (lambda: started(model=replace(MODEL, normalize=False)), r"set model\.normalize = true"),
        (lambda: started(model=Model(head=RidgeStart(), normalize=True), algorithm=fedrep()), "is shared by all"),
        (lambda: RidgeStart(scale=0.0), r"model\.head\.scale must be a positive number, got 0"),
        (lambda: RidgeStart(scale=float("inf")), r"model\.head\.scale must be a positive number, got inf"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
