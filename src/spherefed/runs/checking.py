"""Verify a run: whether its files are as the run wrote them, as far as digests can tell (`digests.py`)."""

from dataclasses import dataclass
from pathlib import Path

from spherefed.errors import RunError
from spherefed.experiment import read_experiment
from spherefed.runs.digests import DIGESTS
from spherefed.runs.directory import RunDirectory, read_object
from spherefed.runs.round_log import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that is whole."""

    path: Path
    num_files: int
    """Files whose digest was compared."""
    state: str
    """How far the run has come."""


def check_run(path: Path) -> CheckedRun:
    """Compare every file of a run with its digest; raises RunError for the first that does not match."""
    directory, experiment = RunDirectory(path), read_experiment(path)
    read_object(path / "environment.json")
    num_files = directory.check_whole()
    log = directory.round_log(experiment)
    checkpoint = log.newest_checkpoint()
    if checkpoint is not None:
        log.check(checkpoint)
        num_files += sum((path / name).exists() for name in CHECKPOINTS)
    if directory.finished:
        _check_model(directory)
    done = experiment.rounds if directory.finished else 0 if checkpoint is None else checkpoint.next_round
    state = "finished" if directory.finished else f"stopped after round {done} of {experiment.rounds}"
    if not (path / DIGESTS).exists():
        state += ", no digests: written by an older release"
    return CheckedRun(path, num_files, state)


def _check_model(directory: RunDirectory) -> None:
    if directory.result().get("weights_sha256") != directory.model().digest():
        raise RunError(f"{directory.path}: model.safetensors has other weights than result.json records")


def find_runs(path: Path) -> list[Path]:
    """The run directories at or below this folder."""
    found = sorted(file.parent for file in path.rglob("experiment.json")) if path.is_dir() else []
    if not found:
        raise RunError(f"{path} holds no run: it needs an experiment.json, at its top or in a folder below")
    return found
