"""A run is a directory that can be read, resumed and run again. No pickle is written or read.

experiment.json         the resolved experiment
environment.json        versions, commit, device, when it started
dataset.json            name, classes, input shape, counts, provenance: what a model needs without its data
partition.safetensors   indices, offsets, label counts; its digest in the metadata
rounds.jsonl            one line per round
ledger.jsonl            one line per refused reply
checkpoint*.safetensors the two newest checkpoints: model, server memory; the round in the metadata
memory/                 what clients remember, stamped with the round; only for methods that let them
model.safetensors       the final model
result.json             accuracies, calibration, traffic, times; exists only when the run is finished
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherefed import checkpoints
from spherefed.checkpoints import Checkpoint, Checkpoints
from spherefed.data.partition import Partition
from spherefed.errors import RunError
from spherefed.experiment import Experiment, read
from spherefed.files import read_tensors, write_bytes, write_tensors
from spherefed.memory import MemoryDirectory
from spherefed.messages import ModelState
from spherefed.schema import differences, to_plain
from spherefed.tensors import Tensors


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path
    _checkpoints: Checkpoints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_checkpoints", Checkpoints(self.path))

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def check_new(self) -> None:
        """Refuse a folder that holds a run."""
        for name in ("experiment.json", *checkpoints.NAMES, "rounds.jsonl"):
            if (self.path / name).exists():
                raise RunError(f"{self.path} holds a run already; use --resume to go on with it, or another --out")

    def begin(
        self,
        experiment: Experiment,
        environment: Mapping[str, Any],
        dataset: Mapping[str, Any],
        partition: Partition,
    ) -> None:
        """Start a new run; an existing one is never overwritten."""
        self.check_new()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run directory {self.path}: {error.strerror}") from error
        write_json(self.path / "environment.json", environment)
        write_json(self.path / "dataset.json", dataset)
        write_tensors(
            self.path / "partition.safetensors", _partition_tensors(partition), {"digest": partition.digest()}
        )
        write_json(self.path / "experiment.json", to_plain(experiment))

    def check_experiment(self, experiment: Experiment) -> None:
        """Refuse to resume another experiment."""
        if not (self.path / "experiment.json").exists():
            raise RunError(f"{self.path} holds no run to resume")
        stored = read(self.path)
        if lines := differences(to_plain(stored), to_plain(experiment)):
            raise RunError(
                f"{self.path} belongs to another experiment, so it cannot be resumed; differences (stored → given): "
                + "; ".join(lines)
            )

    def check_same(self, experiment: Experiment, partition: Partition) -> None:
        """Refuse to resume another experiment, or the same one whose partition comes out otherwise here."""
        self.check_experiment(experiment)
        _, metadata = read_tensors(self.path / "partition.safetensors")
        if metadata.get("digest") != partition.digest():
            raise RunError(
                f"the partition of {self.path} comes out differently with this numpy; install the stored one"
            )

    def adopt_rounds(self, other: "RunDirectory", experiment: Experiment) -> None:
        """Take over the rounds of a finished run of the same training, and what its clients remember of them.

        The checkpoint comes last: without it, a run killed in between starts from round 0 and drops the rest.
        """
        if not other.finished or experiment.training() != read(other.path).training():
            raise RunError(
                f"{other.path} is not a finished run of the same training, so its rounds cannot be taken over"
            )
        checkpoint = other._checkpoints.load()
        if checkpoint is None or checkpoint.next_round != experiment.rounds:
            raise RunError(f"{other.path} has no checkpoint of its last round, so its rounds cannot be taken over")
        if other.memory().path.is_dir():
            shutil.copytree(other.memory().path, self.memory().path, dirs_exist_ok=True)
        ledger = [line for line in read_lines(other.path / "ledger.jsonl") if line["round"] < experiment.rounds]
        _append(self.path / "ledger.jsonl", ledger)
        _append(self.path / "rounds.jsonl", read_lines(other.path / "rounds.jsonl"))
        self._checkpoints.save(checkpoint)

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one process at a time: a run that somebody still works on cannot be resumed beside him."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the system, however the process ends
        except BlockingIOError:
            raise RunError(f"another process is working on {self.path}: wait for it, or end it first") from None
        else:
            yield
        finally:
            os.close(handle)

    def check_engine(self, engine: str) -> None:
        """Refuse to go on where clients remember and their memory lies elsewhere."""
        begun = str(read_json(self.path / "environment.json").get("engine", "local"))
        if (begun == "flower") != (engine == "flower") and read(self.path).keeps_memory:
            where = "at the sites" if begun == "flower" else "in the run directory"
            how = "`spherefed deploy run`" if begun == "flower" else "`spherefed run`"
            raise RunError(f"what clients of {self.path} remember lies {where}: go on with {how}")

    def append_round(self, line: Mapping[str, Any], refused: Iterable[Mapping[str, Any]]) -> None:
        _append(self.path / "ledger.jsonl", refused)
        _append(self.path / "rounds.jsonl", [line])

    def append_ledger(self, refused: Iterable[Mapping[str, Any]]) -> None:
        _append(self.path / "ledger.jsonl", refused)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.save(checkpoint)
        self.memory().settle(checkpoint.next_round)

    def memory(self) -> MemoryDirectory:
        """What clients remember, if the method lets them; its stamps follow the checkpoint."""
        return MemoryDirectory(self.path / "memory")

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, or None; lines of later rounds, written before a crash, are cut off."""
        for torn in self.path.glob(".checkpoint*.safetensors.*"):
            torn.unlink(missing_ok=True)
        checkpoint = self._checkpoints.load()
        next_round = 0 if checkpoint is None else checkpoint.next_round
        self.memory().rewind(next_round)
        for name in ("rounds.jsonl", "ledger.jsonl"):
            kept = [line for line in read_lines(self.path / name) if line["round"] < next_round]
            write_bytes(self.path / name, b"".join(_line(item) for item in kept))
        return checkpoint

    def finish(self, model: ModelState, result: Mapping[str, Any]) -> None:
        write_tensors(self.path / "model.safetensors", model.tensors(), {})
        write_json(self.path / "result.json", result)

    def model(self) -> ModelState:
        """The final model of a finished run."""
        path = self.path / "model.safetensors"
        if not path.exists():
            raise RunError(f"{self.path} is not a finished run: it has no model.safetensors; use --resume to finish it")
        return ModelState.from_tensors(read_tensors(path)[0])

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        if not path.exists():
            raise RunError(f"{self.path} is not a finished run: it has no result.json; use --resume to finish it")
        result: dict[str, Any] = read_json(path)
        return result


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: neither text nor JSON
        raise RunError(f"{path} cannot be read: {error}") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; one cut short by a crash is not whole."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    if content := b"".join(_line(line) for line in lines):
        with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - a round's line, thrice as quick as Path.open
            if file.write(content) < len(content):
                raise OSError(ENOSPC, "the line was not written whole", str(path))


def _line(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode() + b"\n"


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _partition_tensors(partition: Partition) -> Tensors:
    offsets = np.concatenate([[0], np.cumsum(partition.sizes)]).astype(np.int64)
    return {
        "indices": torch.from_numpy(np.concatenate(partition.parts)),
        "offsets": torch.from_numpy(offsets),
        "label_counts": torch.from_numpy(partition.label_counts.astype(np.int64)),
    }
