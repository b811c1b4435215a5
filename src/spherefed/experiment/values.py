"""The values that make up an experiment."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from spherefed.acceleration.passes import Precision
from spherefed.calibration import Calibration
from spherefed.client.batch_statistics import BatchStatistics
from spherefed.client.personalization import Personalization
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Partitioner, Sites
from spherefed.data.shared_format import SharedFormat
from spherefed.data.sources import is_own_source
from spherefed.errors import ConfigError
from spherefed.experiment import checks
from spherefed.field_types import check_types
from spherefed.losses import CrossEntropy, Loss, has_per_example
from spherefed.nn.encoders import Encoder, Mlp
from spherefed.nn.feature_maps import FeatureMap
from spherefed.nn.heads import Head, Learned, RidgeStart
from spherefed.schema import kind_of, own_components, shown, to_plain
from spherefed.server.algorithms import Algorithm
from spherefed.server.reply_checks import Limits
from spherefed.server.schedules import Cosine, Schedule

MAX_ROUNDS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The data set, and which examples are set aside before the partition."""

    name: str = "digits"
    """A data set by name, `folder:PATH`, `arrays:FILE.npz`, `table:FILE.csv` (or `.parquet`), or a function of your
    own, `package.module:Name`; `sites`: only the sites have data."""
    examples: int | None = None
    """Number of training examples to use, the same ones for every seed; none: all of them. With `pooled`, number of
    training and test examples together."""
    resize: int | None = None
    """Height and width in pixels to which images are reduced, each pixel the mean over its area; none: as stored."""
    label_column: str | None = None
    """Column of the labels in a table; none: `label`, `labels`, `target` or `y`. Only for `table:FILE`."""
    validation: float = 0.0
    """Fraction of the training examples that replaces the test set. For tuning, never for results."""
    pooled: bool = False
    """Partition training and test examples as one set (personalised protocol, App. B); the test is on `held_out`."""
    held_out: float = 0.0
    """Fraction of each client's own examples that is not trained on, but used for the local evaluation."""
    classes: tuple[str, ...] = ()
    """All class names, in the order of labels, for sites of which none has every class; empty: as in the files."""
    mean: tuple[float, ...] = ()
    """Mean per channel of pixels between 0 and 1, if sites have to share one normalisation; empty: that of the data."""
    std: tuple[float, ...] = ()
    """Standard deviation per channel, likewise."""

    def __post_init__(self) -> None:
        check_types(self, "data")
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise ConfigError(f"data.classes must be at least two different names, got {list(self.classes)}")
        if len(self.mean) != len(self.std) or not all(deviation > 0 for deviation in self.std):
            raise ConfigError(
                f"data.mean and data.std need one number per channel each, every std above 0; "
                f"got {list(self.mean)} and {list(self.std)}"
            )
        for name in ("examples", "resize"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigError(f"data.{name} must be at least 1, got {number}")
        for name in ("validation", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be in [0, 1), got {getattr(self, name)}")
        if self.pooled and not self.held_out:
            raise ConfigError("data.pooled leaves no test set, so data.held_out must be above 0; the paper's is 0.15")

    @property
    def shared_format(self) -> SharedFormat:
        """Class names and normalisation that all sites use."""
        return SharedFormat(classes=self.classes, mean=self.mean, std=self.std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Encoder, head, and whether features are scaled to unit norm: three independent choices."""

    encoder: Encoder = field(default_factory=Mlp)
    """The network that computes features."""
    frozen: bool = False
    """Never train the encoder: it stays in eval mode, and its tensors are neither sent nor averaged. Every process
    derives it from the seed or loads its pretrained weights, and their digests are compared before a run."""
    feature_map: FeatureMap | None = None
    """Random features between a frozen encoder and the head; none: the head reads the encoder's features."""
    adapter: Encoder | None = None
    """Trainable layers between a frozen encoder (and its feature map) and the head, for example `mlp`; none: only the
    head is trained or computed."""
    head: Head = field(default_factory=Learned)
    """The last layer, one row per class: learned, or fixed and derived from the seed."""
    normalize: bool = False
    """Scale features to unit length before the head."""
    batch_statistics: BatchStatistics = "average"
    """How BatchNorm's running statistics are treated: averaged over clients, kept local, or re-estimated after
    training."""

    def __post_init__(self) -> None:
        check_types(self, "model")
        if self.frozen and self.batch_statistics != "average":
            raise ConfigError(
                f"model.batch_statistics = {self.batch_statistics!r} would change an encoder that model.frozen = true "
                "keeps as it is"
            )
        if self.feature_map is not None and not self.frozen:
            raise ConfigError(
                f"model.feature_map {self.feature_map.kind!r} gives the encoder no gradient: set model.frozen = true"
            )
        if self.adapter is not None and not self.frozen:
            raise ConfigError(
                f"model.adapter {kind_of(self.adapter)!r} is trained on a frozen encoder: set model.frozen = true"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Everything a result depends on."""

    name: str
    """Name of the experiment; also part of the default run directory's name."""
    rounds: int
    """Rounds of training; 0, with a frozen encoder: the head is computed from one upload of every client."""
    local: LocalTraining | None = None
    """What a client does in one round; required unless rounds = 0."""
    seed: int = 0
    """Of everything random: initial weights, fixed head, partition, cohorts, batches, augmentation."""
    data: Data = field(default_factory=Data)
    """The data set, and which examples are set aside."""
    partition: Partitioner = field(default_factory=Dirichlet)
    """How training examples are dealt out to clients."""
    model: Model = field(default_factory=Model)
    """Encoder and head."""
    loss: Loss = field(default_factory=CrossEntropy)
    """Loss of local training: cross-entropy, or the squared error of Eq. 5."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    """What clients add to the loss, and how the server turns replies into the next model."""
    schedule: Schedule = field(default_factory=Cosine)
    """How the learning rate of clients changes from round to round."""
    calibration: Calibration | None = None
    """Computes a new head after training."""
    calibrate_every: int | None = None
    """Rounds between calibrations during training (App. C.2), each of which replaces the head for the
    following rounds; none: only at the end."""
    personalization: Personalization | None = None
    """How each client adapts the trained model before it is evaluated on the client's own held-out examples."""
    cohort: int | None = None
    """Number of clients per round, drawn at random in each round; none: all of them."""
    min_samples: int = 2
    """Fewest examples for which a client sends calibration statistics; those of fewer would reveal the examples."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; the last round is always evaluated."""
    stack: int | None = None
    """Number of clients that train as one computation: faster for tiny models, equal results up to rounding. 0: one by
    one; none: chosen by model and cohort, and the run stores the number."""
    compile: bool = False
    """Train with torch.compile: can be faster for large models, equal up to rounding; needs a C++ compiler."""
    precision: Precision = "fp32"
    """Precision of products and convolutions in training. bf16: weights stay float32; faster only on processors with
    bfloat16 instructions."""
    deadline: float | None = None
    """Seconds after which a client in another process or on another machine is not waited for any longer; a local
    worker process is then killed. none: no limit."""
    quorum: float = 0.0
    """Fraction of the asked clients that must give a usable reply. With fewer, the run ends and can be resumed."""
    limits: Limits = field(default_factory=Limits)
    """Largest norm of an update and largest number of examples of a reply; a reply above them is rejected."""

    def __post_init__(self) -> None:
        check_types(self)
        _check_numbers(self)
        _check_parts(self)

    @property
    def shared_format(self) -> SharedFormat:
        """Class names and normalisation of the inputs; a pretrained encoder has its own normalisation."""
        mean, std = getattr(self.model.encoder, "mean", ()), getattr(self.model.encoder, "std", ())
        if not mean and not std:
            return self.data.shared_format
        if self.data.mean:
            kind = kind_of(self.model.encoder)
            raise ConfigError(f"data.mean and data.std belong to encoder {kind!r}: leave them out")
        if not std or len(mean) != len(std) or not all(deviation > 0 for deviation in std):
            raise ConfigError(
                f"model.encoder.mean and model.encoder.std need one number per channel each, every std above 0; "
                f"got {list(mean)} and {list(std)}"
            )
        owner = f"encoder {kind_of(self.model.encoder)!r}"
        return SharedFormat(classes=self.data.classes, mean=tuple(mean), std=tuple(std), owner=owner)

    @property
    def stacking_blocker(self) -> str | None:
        """Why clients of this experiment cannot be stacked, whatever the model; None if they can."""
        ways = {
            "local.head_epochs": self.local is not None and self.local.head_epochs,
            "an algorithm whose clients keep state": self.algorithm.keeps_client_state,
            "a loss without per_example": not has_per_example(self.loss),
            "compile = true": self.compile,
            f"precision = {self.precision!r}": self.precision != "fp32",
        }
        return next((which for which, chosen in ways.items() if chosen), None)

    @property
    def local_training(self) -> LocalTraining:
        """`local` of an experiment with rounds, which needs it."""
        if self.local is None:
            raise ConfigError("an experiment with rounds = 0 trains nothing: it has no local training")
        return self.local

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients keep a state between rounds."""
        return self.algorithm.keeps_client_state or self.model.batch_statistics == "local"

    def digest(self) -> str:
        """SHA-256 of the fields that differ from their defaults: a new field does not change the digest of old runs."""
        return hashlib.sha256(json.dumps(to_plain(self, defaults=False), sort_keys=True).encode()).hexdigest()

    def own_components(self) -> tuple[str, ...]:
        """The names of the user's own components, `package.module:Name`."""
        named = (self.data.name,) if is_own_source(self.data.name) else ()
        return tuple(dict.fromkeys([*own_components(self), *named]))

    def training_part(self) -> "Experiment":
        """This experiment up to its last round; equal training parts give equal rounds, to the bit."""
        if not self.rounds:
            return self  # nothing is trained
        changes: dict[str, Any] = dict.fromkeys(fields_after_training(self.calibrate_every))
        return replace(self, **changes)

    def unstacked(self) -> "Experiment":
        """For clients in different processes: one by one, unless the experiment sets `stack`."""
        return replace(self, stack=0) if self.stack is None else self

    def with_seed(self, seed: int) -> "Experiment":
        return replace(self, seed=seed)

    def with_lr(self, lr: float) -> "Experiment":
        """The experiment with this local learning rate."""
        return replace(self, local=replace(self.local_training, lr=lr))


def _check_numbers(e: Experiment) -> None:
    """Raise a ConfigError for a name or a number that is not allowed."""
    if not 0 < len(e.name) <= 100 or "/" in e.name or e.name[0] == "." or not e.name.isprintable():
        raise ConfigError(f"name must be a plain word for a folder, got {shown(e.name)}; for example 'mine'")
    if e.rounds > MAX_ROUNDS:
        raise ConfigError(f"rounds must be at most {MAX_ROUNDS}, got {shown(e.rounds)}")
    for name, least in (("rounds", 0), ("seed", 0), ("min_samples", 1), ("evaluate_every", 1)):
        if getattr(e, name) < least:
            raise ConfigError(f"{name} must be at least {least}, got {shown(getattr(e, name))}")
    if e.calibrate_every is not None:
        checks.check_calibrate_every(e)
    if e.cohort is not None and not 1 <= e.cohort <= e.partition.clients:
        raise ConfigError(f"cohort must be between 1 and the number of clients, {e.partition.clients}; got {e.cohort}")
    if e.deadline is not None and not 0 < e.deadline < float("inf"):
        raise ConfigError(f"deadline must be a positive number of seconds or none, got {e.deadline}")
    if not 0 <= e.quorum <= 1:
        raise ConfigError(f"quorum must be between 0 and 1, got {e.quorum}")


def _check_parts(e: Experiment) -> None:
    """Raise a ConfigError for parts that do not go together."""
    head_epochs = 0 if e.local is None else e.local.head_epochs
    if e.rounds and e.local is None:
        raise ConfigError("local is required: only an experiment with rounds = 0 trains nothing")
    if e.model.frozen:
        checks.check_frozen(e)
    if not e.rounds:
        checks.check_without_rounds(e)
    elif isinstance(e.model.head, RidgeStart):
        checks.check_ridge_start(e)
    if e.local is not None and e.algorithm.normalize_steps and e.algorithm.prox_mu:  # no schedule rises above local.lr
        checks.check_normalizable(e.local.lr, e.local.momentum, e.algorithm.prox_mu)
    if e.algorithm.share != "all" or head_epochs:
        checks.check_private_parts(e, head_epochs)
    if e.personalization is not None:
        checks.check_personalization(e)
    if e.model.batch_statistics != "average":
        checks.check_batch_statistics(e)
    if e.stack is not None and e.stack < 0:
        raise ConfigError(f"stack must not be negative, got {e.stack}")
    if e.stack and (which := e.stacking_blocker):
        raise ConfigError(f"stack = {e.stack} does not go with {which}; use stack = 0")
    if e.data.name == checks.SITES or isinstance(e.partition, Sites):
        checks.check_sites(e)


def fields_after_training(calibrate_every: int | None) -> tuple[str, ...]:
    """The fields of an experiment that its rounds do not depend on; a calibration between rounds is not among them."""
    return ("personalization",) if calibrate_every is not None else ("calibration", "personalization")
