"""Finished run directories as frozen values.

A directory is a run if it holds `experiment.json`, and finished if it holds `result.json`. A file that cannot be
understood is refused by name: a report that leaves out what it could not read would compare fewer seeds than it says.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spherefed.errors import RunError

T = TypeVar("T")

TRAINED, CALIBRATED = "trained", "calibrated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A model of the run (as trained, or calibrated afterwards) and what had been spent by then."""

    accuracy: Mapping[str, float]
    """By name, such as `global_model/global_test`."""
    bytes_down: float
    """Received by a client since the run began, mean over clients."""
    bytes_up: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Which client holds how many examples of which class."""

    digest: str
    label_counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A reply that was not counted: one line of a run's ledger."""

    round: int
    client: int
    cause: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished run directory."""

    name: str
    experiment: Mapping[str, Any]
    environment: Mapping[str, Any]
    partition: Partition
    evaluated: Mapping[int, Mapping[str, float]]
    """Accuracies by round, of the rounds that were evaluated."""
    ledger: tuple[Refusal, ...]
    rounds: int
    stages: Mapping[str, Stage]
    """`trained`, and `calibrated` if the experiment calibrates."""
    calibration: Mapping[str, Any] | None
    """How the calibration was solved."""
    personal: Mapping[str, float] | None
    """Mean and standard deviation over clients of their own models' accuracies, where they have some."""
    weights_sha256: str

    @property
    def seed(self) -> int:
        return int(self.experiment["seed"])


def read_runs(paths: Iterable[Path]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The finished runs at or below `paths`, and a note for each unfinished one that was skipped.

    Refused (RunError): a damaged file, no run at all, no finished run.
    """
    found = _find(list(paths))
    finished = {name: path for name, path in found.items() if (path / "result.json").exists()}
    notes = tuple(f"{name} is not finished and was skipped." for name in found if name not in finished)
    if not finished:
        raise RunError(f"{_listed(list(found))}: not finished, nothing to report; resume before reporting")
    return tuple(_read_run(path, name) for name, path in finished.items()), notes


def _find(paths: Sequence[Path]) -> dict[str, Path]:
    """Run directories by a short name that is unique and tells nothing of where the folder lies on this machine."""
    found: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a directory; give a run directory or a folder that holds some")
        if (path / "experiment.json").exists():
            found.setdefault(path.resolve(), path.resolve().name)
            continue
        for file in sorted(path.rglob("experiment.json")):
            found.setdefault(file.parent.resolve(), file.parent.relative_to(path).as_posix())
    if not found:
        raise RunError(f"no run found in {_listed([str(path) for path in paths])}; a run holds experiment.json")
    named: dict[str, Path] = {}
    for path, short in found.items():
        name, number = short, 2
        while name in named:
            name, number = f"{short} ({number})", number + 1
        named[name] = path
    return named


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "no path"


def _read_run(path: Path, name: str) -> Run:
    experiment = _read(path / "experiment.json", lambda plain: {**plain, "seed": int(plain["seed"])})
    lines = [_parsed(where, plain, _evaluated) for where, plain in _json_lines(path / "rounds.jsonl")]
    ledger = path / "ledger.jsonl"
    refusals = [_parsed(where, plain, _refusal) for where, plain in _json_lines(ledger)] if ledger.exists() else []
    rounds, stages, calibration, personal, weights = _read(path / "result.json", _result)
    return Run(
        name=name,
        experiment=experiment,
        environment=_read(path / "environment.json", dict),
        partition=_read_partition(path / "partition.safetensors"),
        evaluated={round_: accuracy for round_, accuracy in lines if accuracy},
        ledger=tuple(refusals),
        rounds=rounds,
        stages=stages,
        calibration=calibration,
        personal=personal,
        weights_sha256=weights,
    )


def _result(
    plain: Any,
) -> tuple[int, dict[str, Stage], dict[str, Any] | None, dict[str, float] | None, str]:
    traffic, seconds, accuracy = plain["traffic"], plain["seconds"], plain["accuracy"]
    training = [phase for phase in ("train", "reestimate") if phase in traffic]
    trained = Stage(
        accuracy=_accuracies(accuracy[TRAINED]),
        bytes_down=sum(float(traffic[phase]["down"]) for phase in training),
        bytes_up=sum(float(traffic[phase]["up"]) for phase in training),
        seconds=sum(float(seconds[phase]) for phase in training),
    )
    stages = {TRAINED: trained}
    if accuracy.get(CALIBRATED):
        stages[CALIBRATED] = Stage(
            accuracy=_accuracies(accuracy[CALIBRATED]),
            bytes_down=trained.bytes_down + float(traffic["calibrate"]["down"]),
            bytes_up=trained.bytes_up + float(traffic["calibrate"]["up"]),
            seconds=trained.seconds + float(seconds["calibrate"]),
        )
    calibration, personal = plain["calibration"], plain.get("personal") or {}
    spread = {name: float(personal[name]) for name in ("mean", "std")} if "mean" in personal else None
    return int(plain["rounds"]), stages, calibration and dict(calibration), spread, str(plain["weights_sha256"])


def _accuracies(plain: Any) -> dict[str, float]:
    return {str(name): float(value) for name, value in plain.items()}


def _evaluated(plain: Any) -> tuple[int, dict[str, float]]:
    return int(plain["round"]), _accuracies(plain["accuracy"])


def _refusal(plain: Any) -> Refusal:
    return Refusal(round=int(plain["round"]), client=int(plain["client"]), cause=str(plain["cause"]))


def _read_partition(path: Path) -> Partition:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            counts = file.get_tensor("label_counts").tolist()
            return Partition(digest=file.metadata()["digest"], label_counts=tuple(tuple(row) for row in counts))
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error


def _read(path: Path, parse: Callable[[Any], T]) -> T:
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
    return _parsed(str(path), plain, parse)


def _json_lines(path: Path) -> list[tuple[str, Any]]:
    """Every line with where it stands; a last line that a crash cut short does not count."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path} is missing or damaged: {error}") from error
    plain: list[tuple[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            plain.append((f"{path}, line {number}", json.loads(line)))
        except ValueError as error:
            raise RunError(f"{path}, line {number} is damaged: {error}") from error
    with suppress(ValueError):
        plain.append((f"{path}, line {len(lines) + 1}", json.loads(last)))
    return plain


def _parsed(where: str, plain: Any, parse: Callable[[Any], T]) -> T:
    try:
        return parse(plain)
    except KeyError as error:
        raise RunError(f"{where} is damaged: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{where} is damaged: {error}") from error
