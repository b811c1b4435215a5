"""A run is a directory that can be read, resumed and run again. No pickle is written or read.

experiment.json         the resolved experiment
environment.json        versions, commit, device, when it started, sources of the user's own components
dataset.json            name, classes, input shape, counts, provenance: what a model needs without its data
partition.safetensors   indices, offsets, label counts; its digest in the metadata
start.json              the upload before round 0; only if it gives the head that training starts from
rounds.jsonl            one line per round
rejections.jsonl        one line per rejected reply
checkpoint*.safetensors the two newest checkpoints: model, server state; the round in the metadata
client_states/          what clients keep between rounds, stamped with the round; only for methods that need it
model.safetensors       the final model
statistics.safetensors  summed statistics of the head and the clients in them; only for exact, additive calibrations
client_statistics/      statistics of each client in them; only on request
result.json             accuracies, calibration, traffic, times; exists only when the run is finished
diagnostics.safetensors test examples by true class and answer, eigenvalues of V; for the report
digests.json            SHA-256 of these files; checkpoints hold those of the files that grow

A new directory is private (mode 0700). Whoever writes holds the lock of the directory, from before the first file.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from spherefed.client.client_state import StateDirectory
from spherefed.components import changed_components
from spherefed.data.partition import Partition
from spherefed.data.partition_file import parts_to_bytes
from spherefed.errors import RunError
from spherefed.experiment import Experiment, read_experiment
from spherefed.files import json_bytes, parse_json, read_file, read_tensors, tensors_to_bytes, write_bytes
from spherefed.messages import ModelState
from spherefed.nn.encoders import structure_digest
from spherefed.runs.digests import BEGUN, CLIENT_STATES, begin_files, check_files, finish_files, stored_digests
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.round_log import CHECKPOINTS, ROUNDS, RoundLog, read_lines
from spherefed.schema import differences, to_plain

START, STATES = "start.json", "client_states"
DIVERGED_LOSS = 1e4
"""A mean loss beyond this is no longer training: cross-entropy begins at log C, the MSE below 1."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def check_new(self) -> None:
        """Refuse a folder that holds a run."""
        for name in ("experiment.json", *CHECKPOINTS, ROUNDS):
            if (self.path / name).exists():
                raise RunError(
                    f"{self.path} holds a run already; use --resume to go on with it, or another --out "
                    "(in Python: resume=True, out=)"
                )

    def begin(
        self,
        experiment: Experiment,
        environment: Mapping[str, Any],
        dataset: Mapping[str, Any],
        partition: Partition,
    ) -> None:
        """Start a new run in a directory that is locked; an existing one is never overwritten."""
        self.check_new()
        parts = parts_to_bytes(partition.parts, partition.label_counts)
        contents = {
            "environment.json": json_bytes(environment),
            "dataset.json": json_bytes(dataset),
            "partition.safetensors": parts,
            "experiment.json": json_bytes(to_plain(experiment)),
        }
        begin_files(self.path, contents)

    def check_experiment(self, experiment: Experiment) -> None:
        """Refuse to resume another experiment."""
        if not (self.path / "experiment.json").exists():
            raise RunError(
                f"{self.path} holds no run to resume: it has no experiment.json; leave --resume out to begin a run, or "
                "name the folder of one"
            )
        check_files(self.path, BEGUN)
        stored = read_experiment(self.path)
        if lines := differences(to_plain(stored), to_plain(experiment)):
            raise RunError(
                f"{self.path} belongs to another experiment, so it cannot be resumed: give the same settings, or "
                "another --out; differences (stored → given): " + "; ".join(lines)
            )

    def check_inputs(self, dataset: Mapping[str, Any], partition: Partition, frozen_digest: str) -> None:
        """Refuse other examples, another partition or other frozen weights than the run began with.

        `dataset` is the description of the data set. What an earlier release did not record is not compared.
        """
        stored, given = (
            _content(d) for d in (read_object(self.path / "dataset.json"), parse_json(json_bytes(dataset)))
        )
        known = stored.keys() & given.keys()
        if lines := differences({name: stored[name] for name in known}, {name: given[name] for name in known}):
            raise RunError(
                f"the data have changed since {self.path} began, so it can be neither resumed nor changed: restore "
                "them, or run again; differences (stored → given): " + "; ".join(lines)
            )
        begun = self._environment().get("frozen_sha256", frozen_digest)
        if begun != frozen_digest:
            raise RunError(
                f"{self.path} began with other frozen weights (SHA-256 {begun[:12]}…, here {frozen_digest[:12]}…): "
                "restore them, or run again"
            )
        _, metadata = read_tensors(self.path / "partition.safetensors")
        if metadata.get("digest") != partition.digest():
            raise RunError(
                f"the partition of {self.path} comes out differently with this numpy; install the stored one"
            )

    def check_whole(self, *, states: bool = True) -> int:
        """Refuse to use a finished run whose files have changed; the number of files compared.

        Without `states`, the content of client states is not read: loading one checks it.
        """
        if not self.finished:  # what a finish that was interrupted has written is written again
            return check_files(self.path, BEGUN)
        compared = check_files(self.path)
        if (stored := stored_digests(self.path).get(CLIENT_STATES)) is not None:
            compared += self.client_states().check(_rounds(self.result()), stored[0], contents=states)
        return compared

    def copy_rounds(self, other: "RunDirectory", experiment: Experiment) -> None:
        """Take over the rounds of a finished run of the same training, with the state of its clients."""
        if not experiment.rounds:
            return
        other.check_numerics()
        other.check_whole()
        if not other.finished or experiment.training_part() != read_experiment(other.path).training_part():
            raise RunError(
                f"{other.path} is not a finished run of the same training, so its rounds cannot be taken over"
            )
        checkpoint = other.round_log(experiment).newest_checkpoint()
        if checkpoint is None or checkpoint.next_round != experiment.rounds:
            raise RunError(f"{other.path} has no checkpoint of its last round, so its rounds cannot be taken over")
        if other.client_states().path.is_dir():
            shutil.copytree(other.client_states().path, self.client_states().path, dirs_exist_ok=True)
        if (other.path / START).exists():
            write_json(self.path / START, read_json(other.path / START))
        self.round_log(experiment).copy_rounds(other.path, checkpoint)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive access: only one process works on a run. The directory is made if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RunError(
                f"cannot make the run directory {self.path}: {error.strerror}; choose another --out"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it, however the process ends
        except BlockingIOError:
            raise RunError(f"another process is working on {self.path}: wait for it, or end it first") from None
        else:
            yield
        finally:
            os.close(handle)

    def check_numerics(self) -> None:
        """Refuse to continue a run whose rounds were computed by another version of the numerics."""
        begun = self._environment().get("numerics_version")
        if begun != NUMERICS_VERSION:
            raise RunError(
                f"{self.path} was computed with version {begun} of the numerics, and this release has version "
                f"{NUMERICS_VERSION}: install the release that began the run, or run the experiment again"
            )

    def _environment(self) -> dict[str, Any]:
        return read_object(self.path / "environment.json")

    def changed_components(self, experiment: Experiment) -> list[str]:
        """One line for each of the user's own components whose source has changed since the run began."""
        names = experiment.own_components()
        if not names or not (self.path / "environment.json").exists():
            return []
        return changed_components(self._environment().get("components", {}), names)

    def check_parts(self, experiment: Experiment, encoder: nn.Module | None) -> None:
        """Refuse to continue a run with components that have changed, or with another module than it began with."""
        self.check_components(experiment)
        self.check_encoder(encoder)

    def check_components(self, experiment: Experiment) -> None:
        """Refuse to continue a run with components that have changed."""
        if lines := self.changed_components(experiment):
            raise RunError(
                f"{self.path} began with other components: {'; '.join(lines)}; restore the files, or run again"
            )

    def check_encoder(self, encoder: nn.Module | None) -> None:
        """Refuse a module with other layers than the run's; runs of earlier releases do not record them."""
        if encoder is None or not (self.path / "environment.json").exists():
            return
        environment = self._environment()
        stored, same_torch = environment.get("encoder_structure"), environment.get("torch") == version("torch")
        if stored is not None and same_torch and stored != structure_digest(encoder):  # torch may print them otherwise
            raise RunError(
                f"{self.path}: encoder= has other layers than the module of the run (the SHA-256 of its repr is "
                f"{structure_digest(encoder)[:12]}…, recorded was {stored[:12]}…); give the module that it was run with"
            )

    def divergence(self) -> str | None:
        """A sentence about a training whose loss has grown beyond any useful value; None if it has not."""
        lines = read_lines(self.path / ROUNDS)
        loss = lines[-1]["loss"] if lines else 0.0
        if isfinite(loss) and abs(loss) < DIVERGED_LOSS:
            return None
        rate = read_experiment(self.path).local_training.lr
        return f"the training diverged: its loss is {loss:.3g} in the last round; lower local.lr, which is {rate:g}"

    def check_engine(self, engine: str) -> None:
        """Refuse to resume if clients keep state and it is stored elsewhere."""
        begun = str(self._environment().get("engine", "local"))
        if (begun == "flower") != (engine == "flower") and read_experiment(self.path).keeps_client_state:
            where = "at the sites" if begun == "flower" else "in the run directory"
            how = "`spherefed deploy run`" if begun == "flower" else "`spherefed run`"
            raise RunError(f"the client state of {self.path} is stored {where}: resume with {how}")

    def round_log(self, experiment: Experiment) -> RoundLog:
        """What the run writes while it trains."""
        return RoundLog(self.path, self.client_states() if experiment.keeps_client_state else None)

    def client_states(self) -> StateDirectory:
        """What clients keep between rounds; its stamps follow the checkpoints."""
        return StateDirectory(self.path / STATES)

    def finish(self, model: ModelState, result: Mapping[str, Any], more: Mapping[str, bytes] | None = None) -> None:
        """Write the final model, `more` files and the result, with the digests of everything that is final now."""
        contents = {"model.safetensors": tensors_to_bytes(model.tensors(), {}), **(more or {})}
        contents["result.json"] = json_bytes(result)
        if not (self.path / STATES).is_dir():
            finish_files(self.path, contents)
            return
        states, rounds = self.client_states(), _rounds(result)
        finish_files(self.path, contents, client_states=states.digest(rounds))
        states.prune(rounds)

    def model(self) -> ModelState:
        """The final model of a finished run."""
        path = self.path / "model.safetensors"
        if not path.exists():
            raise RunError(self._unfinished(path.name))
        try:
            return ModelState.from_tensors(read_tensors(path)[0])
        except KeyError as error:
            raise RunError(f"{path} is damaged: a model has no part {error}") from error

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        if not path.exists():
            raise RunError(self._unfinished(path.name))
        return read_object(path)

    def _unfinished(self, missing: str) -> str:
        """Why a finished run is not found here, and what to do."""
        if (self.path / "experiment.json").exists():
            return f"{self.path} is not a finished run: it has no {missing}; use --resume to finish it"
        if not self.path.is_dir():
            return f"{self.path} is not a run directory: there is no such folder; name a folder that a run has written"
        if inside := sorted(self.path.glob("**/experiment.json")):
            return f"{self.path} is not a run directory but a folder of runs: name one of them, {inside[0].parent}"
        return f"{self.path} is not a run directory: it has no experiment.json; name a folder that a run has written"


def _content(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """What the description of a data set says about its examples, and not about where they were found."""
    names = ("name", "classes", "input_shape", "input_dtype", "normalization", "num_train", "num_test")
    provenance = dataset.get("provenance") or {}
    digests = {name: value for name, value in provenance.items() if name.startswith("sha256")}
    return {name: dataset[name] for name in names if name in dataset} | digests


def _rounds(result: Mapping[str, Any]) -> int:
    if not isinstance(result, dict) or type(found := result.get("rounds")) is not int:
        raise RunError("result.json is damaged: it must say the number of rounds")
    return found


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_file(path))
    except (OSError, ValueError) as error:  # ValueError: neither text nor JSON
        raise RunError(f"{path} cannot be read: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file of names and values."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path} is damaged: it must be a JSON object")
    return found


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json_bytes(value))
