"""Results of experiments in files that can be committed: accuracies, curves, digests, times; no weights and no data.

One file per experiment, named by its digest, with a record for each seed. A record that another version of the
numerics computed does not count.
"""

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.errors import RunError
from spherefed.experiment import Experiment
from spherefed.files import read_tensors
from spherefed.reproduce.compact_json import write_compact_json
from spherefed.runs.directory import RunDirectory, read_json, read_object
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.round_log import ROUNDS, read_lines
from spherefed.schema import to_plain

DIGITS = 16
"""Hexadecimal digits of a digest in file names."""
Record = dict[str, Any]
Records = Mapping[str, Mapping[int, Record]]
"""Digest of an experiment → seed → record."""


def short_digest(experiment: Experiment) -> str:
    """The name of an experiment's files."""
    return experiment.digest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Store:
    """The records in one folder."""

    folder: Path

    def path(self, experiment: Experiment) -> Path:
        """The file of an experiment, the same for every seed."""
        return self._path(experiment.with_seed(0).digest())

    def record(self, experiment: Experiment, seed: int) -> Record | None:
        """What the experiment gave with this seed; None if it has to be run."""
        return self._records(experiment.with_seed(0).digest(), [seed]).get(seed)

    def records(self, experiments: Sequence[Experiment], seeds: Sequence[int]) -> Records:
        """What the experiments, all with seed 0, gave with these seeds; seeds that have to be run are left out."""
        digests = [experiment.digest() for experiment in experiments]
        return {digest: self._records(digest, seeds) for digest in digests}

    def dataset(self, experiment: Experiment) -> dict[str, Any] | None:
        """Name, counts and origin of the data that the experiment was run on; None if it was not run."""
        found = self._content(experiment.with_seed(0).digest()).get("dataset")
        known = isinstance(found, dict) and {"name", "num_train", "num_test", "provenance"} <= set(found)
        return found if known else None

    def add(self, experiment: Experiment, record: Record, dataset: dict[str, Any] | None) -> None:
        """Keep a record; the experiment says its seed."""
        first = experiment.with_seed(0)
        digest = first.digest()
        content = self._content(digest)
        seeds = content.get("seeds", {}) | {str(experiment.seed): record}
        ordered = {seed: seeds[seed] for seed in sorted(seeds, key=int)}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_compact_json(
            self._path(digest),
            {
                "digest": digest,
                "training_digest": first.training_part().digest(),
                "experiment": to_plain(first, defaults=False),
                "dataset": dataset or content.get("dataset"),
                "seeds": ordered,
            },
        )

    def _records(self, digest: str, seeds: Sequence[int]) -> dict[int, Record]:
        known = self._content(digest).get("seeds", {})
        found = {seed: known[str(seed)] for seed in seeds if str(seed) in known}
        valid = {seed: record for seed, record in found.items() if record["numerics_version"] == NUMERICS_VERSION}
        for seed, record in valid.items():
            _check_record(record, self._path(digest), seed)
        return valid

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest[:DIGITS]}.json"

    def _content(self, digest: str) -> dict[str, Any]:
        """The file of the experiment with this digest, empty if there is none; RunError if `add` did not write it."""
        path = self._path(digest)
        if not path.exists():
            return {}
        try:
            content = read_object(path)
        except RunError as damaged:
            raise RunError(f"{damaged}; {_REMOVE}") from damaged
        seeds = content.get("seeds")
        if not isinstance(seeds, dict) or not all(
            isinstance(record, dict) and isinstance(record.get("numerics_version"), int) for record in seeds.values()
        ):
            raise RunError(f"{path} is damaged: 'seeds' must have a record for each seed; {_REMOVE}")
        if wrong := [repr(seed) for seed in seeds if not seed.isdecimal()]:
            raise RunError(f"{path} is damaged: seeds must be whole numbers, got {', '.join(wrong)}; {_REMOVE}")
        if content.get("digest") != digest:
            raise RunError(f"{path} belongs to another experiment: its digest is {content.get('digest')}; {_REMOVE}")
        return content


_REMOVE = "remove the file to run its experiment again"
_PARTS: Mapping[str, type | tuple[type, ...]] = {
    "accuracy": dict, "personal": (dict, NoneType), "curves": dict, "seconds": dict, "machine": str, "torch": str
}  # fmt: skip
"""What every record of a finished run has."""


def _check_record(record: Record, path: Path, seed: int) -> None:
    """A record of a run has all its parts, and numbers where numbers are expected."""
    parts = {} if "error" in record else _PARTS  # clients that train alone add a number to a failure too
    wrong = [name for name, type_ in parts.items() if not isinstance(record.get(name, path), type_)]
    wrong += [name for name in _NUMBERS if not isinstance(record.get(name), int | float | NoneType)]
    if parts and not wrong:
        numbers = [*record["accuracy"].values(), *record["seconds"].values(), *(record["personal"] or {}).values()]
        wrong = [str(value) for value in numbers if not isinstance(value, int | float | NoneType)]
        wrong += [name for name, curve in record["curves"].items() if not _is_curve(curve)]
        wrong += [] if "train" in record["seconds"] else ["seconds.train"]
    if wrong:
        raise RunError(f"{path} is damaged: seed {seed} has wrong or missing parts ({', '.join(wrong)}); {_REMOVE}")


_NUMBERS = ("alignment", "mixing", "local_only", "head_seconds")


def _is_curve(curve: Any) -> bool:
    """Equally many rounds and values, at least one."""
    if not isinstance(curve, dict):
        return False
    rounds, values = curve.get("rounds"), curve.get("values")
    if not (isinstance(rounds, list) and isinstance(values, list) and len(rounds) == len(values) > 0):
        return False
    return all(isinstance(number, int | float) for number in (*rounds, *values))


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
