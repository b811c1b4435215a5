"""Read run directories into frozen dataclasses.

A directory is a run if it has `experiment.json`, and a finished run if it also has `result.json`. A damaged file is an
error that names the file: a report that skipped it would compare fewer seeds than it states.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spherefed.errors import RunError
from spherefed.report.diagnostics import Diagnostics, read_diagnostics
from spherefed.report.json_files import read_json_file, read_json_lines

TRAINED, CALIBRATED = "trained", "calibrated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A model of the run (trained, or calibrated), with the traffic and time up to this stage."""

    accuracy: Mapping[str, float]
    """By name, such as `global_model/global_test`."""
    bytes_down: float
    """Bytes that a client received since the start of the run, mean over clients."""
    bytes_up: float
    seconds: float
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other measures by the name of the accuracy: `balanced_accuracy`, `macro_f1`, `recall` of each class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Number of examples by client and class."""

    digest: str
    label_counts: tuple[tuple[int, ...], ...]

    @property
    def num_clients(self) -> int:
        return len(self.label_counts)

    @property
    def is_known(self) -> bool:
        """Whether the server knows any counts: those of sites with their own data stay at the sites."""
        return any(any(row) for row in self.label_counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLine:
    """A line of `rounds.jsonl`. Values that older runs did not record are None or empty."""

    index: int
    accuracy: Mapping[str, float]
    """Empty if the round was not evaluated."""
    loss: float | None
    lr: float | None
    seconds: float
    bytes_up: Mapping[int, int]
    """By client."""
    bytes_down: Mapping[int, int]
    examples: Mapping[int, int]
    """By client whose reply was counted."""
    cosine: float | None
    """Eq. 2: mean cosine between the heads of clients."""
    norm_difference: float | None
    """Eq. 3: mean difference of their norms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A reply that was not counted: one line of `rejections.jsonl`."""

    round: int
    client: int
    cause: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run directory."""

    name: str
    path: Path
    experiment: Mapping[str, Any]
    environment: Mapping[str, Any]
    partition: Partition
    lines: tuple[RoundLine, ...]
    """One per round so far."""
    rejections: tuple[Rejection, ...]
    rounds: int
    """Rounds of the experiment."""
    stages: Mapping[str, Stage]
    """`trained`, and `calibrated` if the experiment calibrates; empty while the run goes on."""
    result: Mapping[str, Any]
    """The content of `result.json`; empty while the run goes on."""
    classes: tuple[str, ...] = ()
    """Their names; empty if the run did not record them."""
    diagnostics: Diagnostics = field(default_factory=Diagnostics, compare=False)

    @property
    def seed(self) -> int:
        return int(self.experiment["seed"])

    @property
    def finished(self) -> bool:
        return bool(self.stages)

    @property
    def evaluated(self) -> dict[int, Mapping[str, float]]:
        """Accuracies of the evaluated rounds, by round."""
        return {line.index: line.accuracy for line in self.lines if line.accuracy}

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The calibration's own summary, e.g. how the system was solved."""
        return self.result.get("calibration")

    @property
    def personal(self) -> Mapping[str, Any] | None:
        """Mean and standard deviation over clients of the accuracy of personal models; None without them."""
        personal = self.result.get("personal") or {}
        return personal if "mean" in personal else None

    @property
    def weights_sha256(self) -> str:
        return str(self.result.get("weights_sha256", "–"))

    @property
    def sites(self) -> dict[int, str]:
        """The names of sites by client; empty unless the run was deployed."""
        sites = self.environment.get("sites") or ()
        return {int(site["client"]): str(site["site"]) for site in sites}


def read_runs(paths: Iterable[Path], *, unfinished: bool = False) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The finished runs at or below `paths`, and a note for each unfinished run that was skipped.

    Raises RunError for a damaged file, if there is no run, and if no run is finished. With `unfinished`, unfinished
    runs are read as far as they got.
    """
    found = find_runs(list(paths))
    chosen = {name: path for name, path in found.items() if unfinished or (path / "result.json").exists()}
    notes = tuple(f"{name} is not finished and was skipped." for name in found if name not in chosen)
    if not chosen:
        raise RunError(
            f"{_listed(list(found))}: not finished, so there is nothing to report; continue with --resume first, or "
            "follow it with --watch"
        )
    return tuple(read_run(path, name) for name, path in chosen.items()), notes


def find_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Run directories by a short unique name, which does not reveal the path on this machine."""
    found: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a directory; give a run directory or a folder of run directories")
        if (path / "experiment.json").exists():
            found.setdefault(path.resolve(), path.resolve().name)
            continue
        for file in sorted(path.rglob("experiment.json")):
            found.setdefault(file.parent.resolve(), file.parent.relative_to(path).as_posix())
    if not found:
        raise RunError(
            f"no run found in {_listed([str(path) for path in paths])}; a run directory has experiment.json: "
            "give the folder that --out named"
        )
    named: dict[str, Path] = {}
    for path, short in found.items():
        name, number = short, 2
        while name in named:
            name, number = f"{short} ({number})", number + 1
        named[name] = path
    return named


def read_run(path: Path, name: str) -> Run:
    """One run, as far as it got."""
    experiment = read_json_file(path / "experiment.json", lambda plain: {**plain, "seed": int(plain["seed"])})
    finished = (path / "result.json").exists()
    rounds_file, rejections_file = path / "rounds.jsonl", path / "rejections.jsonl"
    lines = read_json_lines(rounds_file, _round_line) if finished or rounds_file.exists() else []
    rejections = read_json_lines(rejections_file, _rejection) if rejections_file.exists() else []
    result, stages = read_json_file(path / "result.json", _result) if finished else ({}, {})
    return Run(
        name=name,
        path=path,
        experiment=experiment,
        environment=read_json_file(path / "environment.json", dict),
        partition=_read_partition(path / "partition.safetensors"),
        lines=tuple(lines),
        rejections=tuple(rejections),
        rounds=int(result["rounds"]) if finished else int(experiment.get("rounds", 0)),
        stages=stages,
        result=result,
        classes=read_json_file(path / "dataset.json", _classes) if (path / "dataset.json").exists() else (),
        diagnostics=read_diagnostics(path),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "no path"


def _result(plain: Any) -> tuple[dict[str, Any], dict[str, Stage]]:
    traffic, seconds, accuracy = plain["traffic"], plain["seconds"], plain["accuracy"]
    measures = plain.get("measures") or {}
    training = [phase for phase in ("start", "train", "reestimate") if phase in traffic]
    trained = Stage(
        accuracy=_accuracies(accuracy[TRAINED]),
        bytes_down=sum(float(traffic[phase]["down"]) for phase in training),
        bytes_up=sum(float(traffic[phase]["up"]) for phase in training),
        seconds=sum(float(seconds[phase]) for phase in training),
        measures=dict(measures.get(TRAINED) or {}),
    )
    stages = {TRAINED: trained}
    if accuracy.get(CALIBRATED):
        stages[CALIBRATED] = Stage(
            accuracy=_accuracies(accuracy[CALIBRATED]),
            bytes_down=trained.bytes_down + float(traffic["calibrate"]["down"]),
            bytes_up=trained.bytes_up + float(traffic["calibrate"]["up"]),
            seconds=trained.seconds + float(seconds["calibrate"]),
            measures=dict(measures.get(CALIBRATED) or {}),
        )
    checked = {"rounds": int(plain["rounds"]), "weights_sha256": str(plain["weights_sha256"])}
    return {**plain, **checked, "calibration": plain["calibration"]}, stages


def _classes(plain: Any) -> tuple[str, ...]:
    return tuple(map(str, plain["classes"]))


def _accuracies(plain: Any) -> dict[str, float]:
    return {str(name): float(value) for name, value in plain.items()}


def _round_line(plain: Any) -> RoundLine:
    consistency = plain.get("consistency") or {}
    loss, lr = plain.get("loss"), plain.get("lr")
    return RoundLine(
        index=int(plain["round"]),
        accuracy=_accuracies(plain["accuracy"]),
        loss=None if loss is None else float(loss),
        lr=None if lr is None else float(lr),
        seconds=float(plain.get("seconds", 0.0)),
        bytes_up={int(client): int(size) for client, size in plain.get("bytes_up", {}).items()},
        bytes_down={int(client): int(size) for client, size in plain.get("bytes_down", {}).items()},
        examples=dict(zip(map(int, plain.get("clients", ())), map(int, plain.get("examples", ())), strict=False)),
        cosine=consistency.get("cosine"),
        norm_difference=consistency.get("norm_difference"),
    )


def _rejection(plain: Any) -> Rejection:
    return Rejection(round=int(plain["round"]), client=int(plain["client"]), cause=str(plain["cause"]))


def _read_partition(path: Path) -> Partition:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            counts = file.get_tensor("label_counts").tolist()
            return Partition(digest=file.metadata()["digest"], label_counts=tuple(tuple(row) for row in counts))
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
