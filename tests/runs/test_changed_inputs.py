"""A run whose data or frozen weights have changed since it began is neither resumed nor changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from spherefed.calibration import Ffc
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.errors import RunError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import json_bytes
from spherefed.nn.encoders import CallableEncoder, Encoder, Flatten
from spherefed.nn.heads import Orthonormal
from spherefed.runs.digests import begin_files
from spherefed.runs.directory import read_json
from spherefed.runs.head_changes import change_head
from spherefed.runs.runner import run, run_to_end


def write_csv(path: Path, sign: float) -> str:
    rng = np.random.default_rng(0)
    lines = ["a,b,label"]
    for row in range(100):
        x, y = sign * rng.normal(row % 2, 1), sign * rng.normal(-(row % 2), 1)
        lines.append(f"{x:.4f},{y:.4f},{row % 2}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return f"table:{path}"


def write_npz(path: Path, sign: float) -> str:
    images = sign * np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    np.savez(path, images=images, labels=np.arange(100) % 2)
    return f"arrays:{path}"


def own_encoder(path: Path) -> nn.Module:
    """Weights from a file, as a user's function may read them."""
    layer = nn.Linear(2, 2)
    layer.load_state_dict(torch.load(path, weights_only=True))
    return layer


def one_shot(data: str, encoder: Encoder | None = None) -> Experiment:
    return Experiment(
        name="changed",
        rounds=0,
        data=Data(name=data),
        partition=Iid(clients=3),
        model=Model(encoder=encoder or Flatten(), frozen=True, head=Orthonormal(), normalize=True),
        calibration=Ffc(),
    )


WRITERS = {"data.csv": write_csv, "data.npz": write_npz}


@pytest.mark.parametrize("file", WRITERS)
def test_other_data_are_refused_by_a_resume_and_by_a_change_of_the_head(file: str, tmp_path: Path) -> None:
    write: Callable[[Path, float], str] = WRITERS[file]
    name = write(tmp_path / file, 1)
    experiment = replace(
        one_shot(name), rounds=3, calibration=None, local=LocalTraining(lr=0.1, epochs=1), model=Model()
    )
    steps = run(experiment, tmp_path / "trained")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    run_to_end(one_shot(name), tmp_path / "head")
    before = (tmp_path / "head" / "statistics.safetensors").read_bytes()
    write(tmp_path / file, -5)
    with pytest.raises(RunError, match=r"the data have changed since .*sha256"):
        run(experiment, tmp_path / "trained", resume=True).__next__()
    with pytest.raises(RunError, match=r"the data have changed since .*sha256"):
        change_head(tmp_path / "head", 1, "forget")
    assert (tmp_path / "head" / "statistics.safetensors").read_bytes() == before
    write(tmp_path / file, 1)
    assert change_head(tmp_path / "head", 1, "forget")["client"] == 1
    for _ in run(experiment, tmp_path / "trained", resume=True):
        pass


def test_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    name, weights = write_csv(tmp_path / "data.csv", 1), tmp_path / "encoder.pt"
    torch.save(nn.Linear(2, 2).state_dict(), weights)
    encoder = CallableEncoder(kind=f"{__name__}:own_encoder", options=(("path", str(weights)),))
    experiment = one_shot(name, encoder)
    run_to_end(experiment, tmp_path / "run")
    torch.save(nn.Linear(2, 2).state_dict(), weights)
    with pytest.raises(RunError, match="began with other frozen weights"):
        change_head(tmp_path / "run", 1, "forget")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match="began with other frozen weights"):
        run_to_end(experiment, tmp_path / "run", resume=True)


def test_what_an_earlier_release_did_not_record_is_not_compared(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_to_end(one_shot(write_npz(tmp_path / "data.npz", 1)), out)
    dataset, environment = read_json(out / "dataset.json"), read_json(out / "environment.json")
    del dataset["provenance"]["sha256"], dataset["input_dtype"], environment["frozen_sha256"]
    files = ("partition.safetensors", "experiment.json")
    kept = {name: (out / name).read_bytes() for name in files}
    (out / "result.json").unlink()
    begin_files(out, {"environment.json": json_bytes(environment), "dataset.json": json_bytes(dataset)} | kept)
    run_to_end(one_shot(f"arrays:{tmp_path / 'data.npz'}"), out, resume=True)
