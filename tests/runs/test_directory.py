"""The run directory: never overwritten, compared before a run continues, and damaged files refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from spherefed.assembly import assemble
from spherefed.data.partition import Dirichlet
from spherefed.errors import RunError
from spherefed.experiment import Experiment, with_settings
from spherefed.runs.directory import RunDirectory
from spherefed.runs.loading import load
from spherefed.runs.round_log import CHECKPOINTS
from spherefed.runs.runner import run, run_to_end
from support.damage import damage_cut, damage_empty, damage_garbage
from support.small import blobs, save_arrays


def test_a_changed_experiment_is_refused_with_the_differences(experiment: Experiment, tmp_path: Path) -> None:
    next(run(experiment, tmp_path / "run"))
    other = with_settings(experiment, ["local.lr=0.125", "rounds=9"])
    with pytest.raises(RunError) as caught:
        run_to_end(other, tmp_path / "run", resume=True)
    assert "local.lr: 0.5 → 0.125" in str(caught.value)
    assert "rounds: 3 → 9" in str(caught.value)
    assert "batch_size" not in str(caught.value)


def test_a_partition_that_comes_out_otherwise_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    next(run(experiment, tmp_path / "run"))
    other = blobs(num_train=87)
    save_arrays(tmp_path / "data.npz", other)
    with pytest.raises(RunError, match="partition"):
        run_to_end(experiment, tmp_path / "run", resume=True)


@pytest.mark.parametrize("left", ["experiment.json", *CHECKPOINTS, "rounds.jsonl"])
def test_a_run_is_never_overwritten(experiment: Experiment, tmp_path: Path, left: str) -> None:
    run_to_end(experiment, tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.name != left:
            path.unlink()
    before = (tmp_path / "run" / left).read_bytes()
    with pytest.raises(RunError, match="holds a run already"):
        run_to_end(experiment, tmp_path / "run")
    assert (tmp_path / "run" / left).read_bytes() == before


def test_what_is_no_run_cannot_be_resumed_or_loaded(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        run_to_end(experiment, tmp_path / "nothing", resume=True)
    next(run(experiment, tmp_path / "unfinished"))
    for name, message in (("nothing", "not a run directory"), ("unfinished", "not a finished run")):
        with pytest.raises(RunError, match=message):
            load(tmp_path / name)
        with pytest.raises(RunError, match=message):
            RunDirectory(tmp_path / name).result()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make"):
        run_to_end(experiment, tmp_path / "file")


@pytest.mark.parametrize("name", ["result.json", "model.safetensors"])
@pytest.mark.parametrize("damage", [damage_cut, damage_empty, damage_garbage])
def test_damaged_results_are_errors(experiment: Experiment, tmp_path: Path, name: str, damage: Any) -> None:
    run_to_end(experiment, tmp_path / "run")
    damage(tmp_path / "run" / name)
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        _ = directory.result() if name == "result.json" else directory.model()


def test_the_partition_is_stored_with_the_run(experiment: Experiment, tmp_path: Path) -> None:
    skewed = with_settings(experiment, ["partition.kind=dirichlet", "partition.alpha=0.05", "partition.clients=6"])
    next(run(skewed, tmp_path / "run"))
    assembly = assemble(skewed)
    assert isinstance(skewed.partition, Dirichlet)
    stored = load_file(tmp_path / "run" / "partition.safetensors")
    labels = assembly.dataset.train.labels.numpy()
    offsets = stored["offsets"].numpy()
    assert len(offsets) == 7
    for client, part in enumerate(assembly.partition.parts):
        indices = stored["indices"].numpy()[offsets[client] : offsets[client + 1]]
        assert np.array_equal(indices, part)
        counts = [int((labels[indices] == c).sum()) for c in range(3)]
        assert stored["label_counts"][client].tolist() == counts
