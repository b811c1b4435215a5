"""What is recorded of how a result was computed."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from spherefed.experiment import Experiment, read_experiment
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import run_to_end


def test_a_run_says_how_it_was_made_and_what_came_out(experiment: Experiment, tmp_path: Path) -> None:
    result = run_to_end(experiment, tmp_path / "run")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__.split("+")[0] or environment["torch"] == torch.__version__
    assert environment["seed"] == 0
    assert environment["experiment_digest"] == experiment.digest()
    run_to_end(replace(experiment, stack=None), tmp_path / "suggested")
    environment = json.loads((tmp_path / "suggested" / "environment.json").read_text())
    assert environment["experiment_digest"] == read_experiment(tmp_path / "suggested").digest() != experiment.digest()
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert result["traffic"]["train"]["up"] == sum(sum(line["bytes_up"].values()) for line in lines) / 4
    assert result["calibration"]["path"] in ("cholesky", "eigh")
    assert result["accuracy"].keys() == {"trained", "calibrated"}
