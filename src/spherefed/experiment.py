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
from spherefed.batch_statistics import BatchStatistics
from spherefed.calibration import Calibration, Ffc, FfcGcv
from spherefed.data.convention import Convention
from spherefed.data.partition import Dirichlet, Partitioner, Sites
from spherefed.errors import ConfigError
from spherefed.losses import CrossEntropy, Loss
from spherefed.nn.encoders import Encoder, Mlp
from spherefed.nn.heads import Head, Learned
from spherefed.nn.passes import Precision
from spherefed.personalization import BlendedFfc, Personalization
from spherefed.schedules import Cosine, Schedule
from spherefed.schema import from_plain, nearest, to_plain, with_path
from spherefed.training import LocalTraining

SITES = "sites"
"""The name of data that only the sites have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Which examples, and what is set aside before clients get theirs."""

    name: str = "digits"
    """A data set by name, or `folder:PATH` or `arrays:FILE.npz`; `sites`: only the sites have any."""
    examples: int | None = None
    """Train on so many of its training examples only, the same ones for every seed; none: on all."""
    validation: float = 0.0
    """Fraction of the training examples that takes the place of the test set: for tuning, never for results."""
    pooled: bool = False
    """Training and test examples go to the clients as one set (personalised protocol, App. B); test on `held_out`."""
    held_out: float = 0.0
    """Fraction of each client's own examples kept from training, on which the model is evaluated locally."""
    classes: tuple[str, ...] = ()
    """All class names, in the order of labels, where no one has examples of every class; empty: as the files say."""
    mean: tuple[float, ...] = ()
    """Per channel, of pixels between 0 and 1, where sites have to agree on one normalisation; empty: the data's own."""
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise ConfigError(f"data.classes must be at least two different names, got {list(self.classes)}")
        if len(self.mean) != len(self.std) or not all(deviation > 0 for deviation in self.std):
            raise ConfigError(
                f"data.mean and data.std need one number per channel each, every std above 0; "
                f"got {list(self.mean)} and {list(self.std)}"
            )
        if self.examples is not None and self.examples < 1:
            raise ConfigError(f"data.examples must be at least 1, got {self.examples}")
        for name in ("validation", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be in [0, 1), got {getattr(self, name)}")
        if self.pooled and not self.held_out:
            raise ConfigError("data.pooled leaves no test set, so data.held_out must be above 0; the paper's is 0.15")

    @property
    def convention(self) -> Convention:
        """How the data are to be read, whoever has them."""
        return Convention(classes=self.classes, mean=self.mean, std=self.std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Encoder, head, and whether features are put on the unit sphere: three independent switches."""

    encoder: Encoder = field(default_factory=Mlp)
    head: Head = field(default_factory=Learned)
    normalize: bool = False
    batch_statistics: BatchStatistics = "average"
    """What becomes of BatchNorm's running statistics: averaged over clients, kept local, or re-estimated after training
    (`batch_statistics.py`)."""


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
    """Replaces the head when training is over."""
    calibrate_every: int | None = None
    """Rounds between calibrations during training (App. C.2), each of which replaces the head that training goes on
    with; none: only at the end."""
    personalization: Personalization | None = None
    """What each client makes of the trained model before it is evaluated on the client's own held-out examples."""
    cohort: int | None = None
    """Clients per round, drawn anew each time; none: all of them."""
    min_samples: int = 2
    """Fewest examples for which a client sends calibration statistics; fewer would reveal them."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""
    stack: int | None = None
    """Clients that train as one computation, so many in the order they are asked: faster where models are tiny, equal
    up to rounding; 0: one by one; none: what `stacking.suggested` says of the model, and a run keeps the number."""
    compile: bool = False
    """Train through torch.compile: faster where models are large, equal up to rounding; needs a C++ compiler."""
    precision: Precision = "fp32"
    """Of products and convolutions in training. bf16: weights stay float32; only faster where the processor has it."""

    deadline: float | None = None
    """Seconds after which a client that lives elsewhere is not waited for any longer; none: no limit."""
    quorum: float = 0.0
    """Fraction of the clients asked that must give a usable reply; fewer end the run, which can be resumed."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"name must be a plain word for a folder, got {self.name!r}")
        for name, least in (("rounds", 1), ("seed", 0), ("min_samples", 1), ("evaluate_every", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.calibrate_every is not None and (self.calibration is None or self.calibrate_every < 1):
            raise ConfigError(
                f"calibrate_every must be at least 1 and needs a calibration, got {self.calibrate_every} with "
                f"calibration {'none' if self.calibration is None else self.calibration.kind!r}"
            )
        if self.cohort is not None and not 1 <= self.cohort <= self.partition.clients:
            raise ConfigError(
                f"cohort must be between 1 and the number of clients, {self.partition.clients}; got {self.cohort}"
            )
        if self.algorithm.normalize_steps and self.algorithm.prox_mu:  # no schedule rises above local.lr
            _check_normalizable(self.local.lr, self.local.momentum, self.algorithm.prox_mu)
        self._check_parts()
        self._check_stack()
        self._check_sites()

    def _check_sites(self) -> None:
        """Whether sites that never see each other's data have been told what to agree on, and how long to wait."""
        data, on_sites = self.data, isinstance(self.partition, Sites)
        if data.name == SITES and not on_sites:
            raise ConfigError(f"data.name = {SITES!r} needs partition.kind = 'sites', got {self.partition.kind!r}")
        if on_sites and not data.classes:
            raise ConfigError("partition.kind = 'sites' needs data.classes: all class names, in the order of labels")
        if data.name == SITES and not data.held_out:
            raise ConfigError(
                f"with data.name = {SITES!r} the server has no test set, so data.held_out must be above 0, "
                "for evaluation at each site; 0.2 is usual"
            )
        if on_sites and (data.examples is not None or data.validation or data.pooled):
            raise ConfigError("data.examples, data.validation and data.pooled do not go with partition.kind = 'sites'")
        if self.deadline is not None and not 0 < self.deadline < float("inf"):
            raise ConfigError(f"deadline must be a positive number of seconds or none, got {self.deadline}")
        if not 0 <= self.quorum <= 1:
            raise ConfigError(f"quorum must be between 0 and 1, got {self.quorum}")

    def _check_stack(self) -> None:
        """Whether clients can train as one; what the model has to say about it is seen when it is built."""
        if self.stack is not None and self.stack < 0:
            raise ConfigError(f"stack must not be negative, got {self.stack}")
        if self.stack and (which := self.against_stacking):
            raise ConfigError(f"stack = {self.stack} does not go with {which}; use stack = 0")

    @property
    def against_stacking(self) -> str | None:
        """What keeps clients from training as one, whatever the model."""
        ways = {
            "local.head_epochs": self.local.head_epochs,
            "an algorithm whose clients remember": self.algorithm.keeps_memory,
            "compile = true": self.compile,
            f"precision = {self.precision!r}": self.precision != "fp32",
        }
        return next((which for which, chosen in ways.items() if chosen), None)

    def _check_parts(self) -> None:
        """Whether what is shared, calibrated and personalised goes together."""
        share, personal = self.algorithm.share, self.personalization
        if not isinstance(self.model.head, Learned) and (share == "head" or self.local.head_epochs):
            which = "algorithm.share = 'head'" if share == "head" else "local.head_epochs"
            raise ConfigError(f"{which} needs a head that is learned, got {self.model.head.kind!r}")
        if share != "all" and self.calibration is not None:
            raise ConfigError(f"calibration needs a model that all clients share, got algorithm.share = {share!r}")
        if personal is not None and not self.data.held_out:
            raise ConfigError("personalization is evaluated on clients' own examples: data.held_out must be above 0")
        if isinstance(personal, BlendedFfc) and not isinstance(self.calibration, Ffc | FfcGcv):
            raise ConfigError(
                "personalization 'blended-ffc' needs calibration 'ffc' or 'ffc-gcv', whose sums it blends in"
            )

        self._check_batch_statistics()

    def _check_batch_statistics(self) -> None:
        """Whether there is somebody to do with running statistics as the experiment says."""
        policy, share = self.model.batch_statistics, self.algorithm.share
        if policy == "reestimate" and share == "head":
            raise ConfigError("model.batch_statistics 'reestimate' needs an encoder that all share, got share = 'head'")
        if policy == "local" and self.calibration is not None:
            raise ConfigError(
                "calibration needs a model that all clients share, got model.batch_statistics = 'local'; "
                "use personalization 'local-ffc' or other statistics"
            )
        if policy == "local" and not self.data.held_out:
            raise ConfigError(
                "model.batch_statistics = 'local' leaves no model that the test set could be tried on: "
                "data.held_out must be above 0, for evaluation on clients' own examples"
            )

    @property
    def keeps_memory(self) -> bool:
        """Whether clients remember anything from round to round."""
        return self.algorithm.keeps_memory or self.model.batch_statistics == "local"

    def digest(self) -> str:
        """SHA-256 of the plain form: equal digests mean equal experiments."""
        return hashlib.sha256(to_text(self).encode()).hexdigest()

    def training(self) -> "Experiment":
        """This experiment as far as its rounds go; those of two experiments with equal ones are equal to the bit."""
        if self.calibrate_every is not None:  # then the rounds depend on the calibration
            return replace(self, personalization=None)
        return replace(self, calibration=None, personalization=None)

    def apart(self) -> "Experiment":
        """For clients that share no process: one by one, unless the experiment insists on something else."""
        return replace(self, stack=0) if self.stack is None else self

    def with_seed(self, seed: int) -> "Experiment":
        return replace(self, seed=seed)


def from_mapping(plain: Mapping[str, Any]) -> Experiment:
    """From nested plain data, strictly: unknown or mistyped keys are refused with the nearest valid name."""
    experiment: Experiment = from_plain(Experiment, plain)
    return experiment


def to_text(experiment: Experiment) -> str:
    """As one line of JSON, which `from_text` reads."""
    return json.dumps(to_plain(experiment), sort_keys=True)


def from_text(text: str) -> Experiment:
    """From JSON, as strictly as `from_mapping`."""
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the experiment cannot be parsed as JSON: {error}") from error
    return from_mapping(plain)


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


def _check_normalizable(lr: float, momentum: float, prox_mu: float) -> None:
    """Refuse FedNova where a step could count negatively: that is excluded for every τ iff ημ ≤ (1 − √ρ)²."""
    limit = (1 - momentum**0.5) ** 2
    if lr * prox_mu > limit:
        raise ConfigError(
            f"FedNova with prox_mu {prox_mu} and momentum {momentum} needs lr · prox_mu <= (1 − √momentum)² = "
            f"{limit:.4g}, got {lr * prox_mu:.4g}; lower local.lr, local.momentum or algorithm.prox_mu"
        )


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
