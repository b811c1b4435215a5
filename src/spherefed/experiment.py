"""An experiment is one value that says everything a result depends on, and nothing else.

It is read from a recipe, TOML or JSON, changed by `--set path=value`, written into the run and compared on resume.
How it is computed (engine, workers, output) is not part of it, because results do not depend on it.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spherefed.algorithms import Algorithm
from spherefed.calibration import Calibration
from spherefed.data.partition import Dirichlet, Partitioner
from spherefed.errors import ConfigError
from spherefed.losses import CrossEntropy, Loss
from spherefed.nn.encoders import Encoder, Mlp
from spherefed.nn.heads import Head, Learned
from spherefed.schedules import Cosine, Schedule
from spherefed.schema import from_plain, nearest, to_plain, with_path
from spherefed.training import LocalTraining


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which examples, and what is set aside before clients get theirs."""

    name: str = "digits"
    """A data set by name, or `folder:PATH` or `arrays:FILE.npz`."""
    examples: int | None = None
    """Train on so many of its training examples only, the same ones for every seed; none: on all."""
    validation: float = 0.0
    """Fraction of the training examples that takes the place of the test set: for tuning, never for results."""
    held_out: float = 0.0
    """Fraction of each client's own examples kept from training, on which the model is evaluated locally."""

    def __post_init__(self) -> None:
        if self.examples is not None and self.examples < 1:
            raise ConfigError(f"data.examples must be at least 1, got {self.examples}")
        for name in ("validation", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be in [0, 1), got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Encoder, head, and whether features are put on the unit sphere: three independent switches."""

    encoder: Encoder = field(default_factory=Mlp)
    head: Head = field(default_factory=Learned)
    normalize: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything a result depends on."""

    name: str
    rounds: int
    local: LocalTraining
    seed: int = 0
    data: Data = field(default_factory=Data)
    partition: Partitioner = field(default_factory=Dirichlet)
    model: Model = field(default_factory=Model)
    loss: Loss = field(default_factory=CrossEntropy)
    algorithm: Algorithm = field(default_factory=Algorithm)
    schedule: Schedule = field(default_factory=Cosine)
    calibration: Calibration | None = None
    cohort: int | None = None
    """Clients per round, drawn anew each time; none: all of them."""
    min_samples: int = 2
    """Fewest examples for which a client sends calibration statistics; fewer would reveal them."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"name must be a plain word for a folder, got {self.name!r}")
        for name, least in (("rounds", 1), ("seed", 0), ("min_samples", 1), ("evaluate_every", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.cohort is not None and not 1 <= self.cohort <= self.partition.clients:
            raise ConfigError(
                f"cohort must be between 1 and the number of clients, {self.partition.clients}; got {self.cohort}"
            )

    def digest(self) -> str:
        """SHA-256 of the plain form: equal digests mean equal experiments."""
        return hashlib.sha256(json.dumps(to_plain(self), sort_keys=True).encode()).hexdigest()

    def with_seed(self, seed: int) -> "Experiment":
        return replace(self, seed=seed)


def from_mapping(plain: Mapping[str, Any]) -> Experiment:
    """From nested plain data, strictly: unknown or mistyped keys are refused with the nearest valid name."""
    experiment: Experiment = from_plain(Experiment, plain)
    return experiment


def changed(experiment: Experiment, settings: Iterable[str]) -> Experiment:
    """The experiment with `path=value` settings applied, values written as in TOML; bare words are texts.

    >>> from spherefed.experiment import Experiment, LocalTraining
    >>> e = Experiment(name="x", rounds=3, local=LocalTraining(lr=0.1))
    >>> changed(e, ["local.lr=0.5", "partition.kind=iid"]).partition
    Iid(clients=10)
    """
    plain = to_plain(experiment)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set wants path=value, got {setting!r}; for example --set local.lr=0.1")
        plain = with_path(plain, path.strip(), _value(text.strip()))
    return from_mapping(plain)


def read(path: Path) -> Experiment:
    """From a `.toml` or `.json` file, or from a run directory."""
    if path.is_dir():
        path = path / "experiment.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the experiment {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file: {error.reason}") from error
    try:
        plain = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from error
    try:
        return from_mapping(plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def find(name: str, recipes: Mapping[str, Any]) -> Experiment:
    """A recipe by name, or a file or run directory by path."""
    if name in recipes:
        experiment: Experiment = recipes[name]()
        return experiment
    if Path(name).exists() or name.endswith((".toml", ".json")) or "/" in name:
        return read(Path(name))
    raise ConfigError(f"no recipe, file or run directory {name!r}; {nearest(name, recipes)}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
