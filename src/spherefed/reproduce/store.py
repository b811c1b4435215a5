"""Results of experiments in files that can be committed: accuracies, curves, digests, times; no weights and no data.

One file per experiment, named by its digest, with a record for each seed. A record that another version of the
numerics computed does not count.
"""

import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.experiment import Experiment
from spherefed.files import read_tensors
from spherefed.reproduce.compact_json import write_compact_json
from spherefed.runs.directory import RunDirectory, read_json
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.round_log import ROUNDS, read_lines
from spherefed.schema import to_plain

DIGITS = 16
"""Hexadecimal digits of a digest in file names."""
Record = dict[str, Any]


def short_digest(experiment: Experiment) -> str:
    """The name of an experiment's files."""
    return experiment.digest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Store:
    """The records in one folder."""

    folder: Path

    def path(self, experiment: Experiment) -> Path:
        """The file of an experiment, the same for every seed."""
        return self.folder / f"{short_digest(experiment.with_seed(0))}.json"

    def record(self, experiment: Experiment, seed: int) -> Record | None:
        """What the experiment gave with this seed; None if it has to be run."""
        path = self.path(experiment)
        if not path.exists():
            return None
        found: Record | None = read_json(path)["seeds"].get(str(seed))
        return found if found is not None and found["numerics_version"] == NUMERICS_VERSION else None

    def add(self, experiment: Experiment, record: Record, dataset: dict[str, Any] | None) -> None:
        """Keep a record; the experiment says its seed."""
        path, first = self.path(experiment), experiment.with_seed(0)
        content = read_json(path) if path.exists() else {}
        seeds = content.get("seeds", {}) | {str(experiment.seed): record}
        ordered = {seed: seeds[seed] for seed in sorted(seeds, key=int)}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_compact_json(
            path,
            {
                "digest": first.digest(),
                "training_digest": first.training_part().digest(),
                "experiment": to_plain(first, defaults=False),
                "dataset": dataset or content.get("dataset"),
                "seeds": ordered,
            },
        )


def record_of_run(directory: RunDirectory) -> Record:
    """What a finished run found."""
    result = directory.result()
    environment = read_json(directory.path / "environment.json")
    lines = read_lines(directory.path / ROUNDS)
    _, metadata = read_tensors(directory.path / "partition.safetensors")
    curves: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        values = {"accuracy": line["accuracy"].get(GLOBAL_TEST), **(line.get("consistency") or {})}
        for name, value in values.items():
            if value is not None:
                curve = curves.setdefault(name, {"rounds": [], "values": []})
                curve["rounds"].append(line["round"] + 1)
                curve["values"].append(round(value, 6))
    personal = result["personal"]
    return {
        "accuracy": {stage: found.get(GLOBAL_TEST) for stage, found in result["accuracy"].items()},
        "personal": None if personal is None else {name: personal[name] for name in ("mean", "std")},
        "calibration": result["calibration"],
        "curves": curves,
        "partition": metadata["digest"],
        "weights_sha256": result["weights_sha256"],
        "seconds": {name: round(value, 2) for name, value in result["seconds"].items()},
        "machine": machine(),
        "torch": environment["torch"],
        "numerics_version": environment["numerics_version"],
    }


def machine() -> str:
    """System, architecture and processor: results are compared to the bit only between equal ones."""
    names = [platform.processor()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        pairs = [line.partition(":") for line in lines]
        found = {key.strip(): value.strip() for key, _, value in pairs}
        # The name alone can be as general as "AMD EPYC".
        names = [
            found.get("model name", ""),
            *(f"{key} {found[key]}" for key in ("cpu family", "model") if key in found),
        ]
    return ", ".join([f"{platform.system()} {platform.machine()}", *(name for name in names if name)])


def record_of_failure(message: str) -> Record:
    """A training that diverged or a calibration that could not be solved: a result without a number."""
    return {"error": message, "numerics_version": NUMERICS_VERSION}


def dataset_of_run(directory: RunDirectory) -> dict[str, Any]:
    """Name, counts and digests of the data, without the class names."""
    found = dict(read_json(directory.path / "dataset.json"))
    found["num_classes"] = len(found.pop("classes"))
    return found
