"""The model of a finished run, as a module."""

from pathlib import Path

import torch

from spherefed.experiment import Experiment
from spherefed.runs.directory import RunDirectory
from spherefed.runs.loading import load
from spherefed.runs.runner import run_to_end
from support.small import blobs


def test_a_finished_run_gives_back_its_calibrated_module(experiment: Experiment, tmp_path: Path) -> None:
    result = run_to_end(experiment, tmp_path / "run")
    module = load(tmp_path / "run")
    assert not module.training
    test = blobs().test
    with torch.no_grad():
        right = (module(test.inputs).argmax(dim=1) == test.labels).sum().item()
    assert right / len(test) == result["accuracy"]["calibrated"]["global_model/global_test"]
    state = RunDirectory(tmp_path / "run").model()
    assert state.head is not None
    assert torch.equal(module.head.weight, state.head["weight"])
    assert state.digest() == result["weights_sha256"]
