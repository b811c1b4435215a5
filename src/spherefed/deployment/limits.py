"""A site's own limits, the table `[limits]` of site.toml. The site enforces them, whatever the server asks."""

import warnings
from dataclasses import dataclass
from math import ceil

import torch

from spherefed.calibration import FfcGcv
from spherefed.data.partition import Sites, Stored
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.nn.heads import RidgeStart
from spherefed.schema import kind_of

MAX_EXPERIMENT_CHARACTERS = 1 << 20
MAX_LABEL_COUNTS = 10**7
"""Clients times classes: the size of the table of label counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteLimits:
    """What a server may ask of this site."""

    max_rounds: int = 1000
    """Rounds of an experiment, and training requests of a run, repeated rounds included."""
    max_epochs: int = 100
    """Passes over the data in one round, those that train only the head included; also of a personalization."""
    max_parameters: int = 50_000_000
    """Numbers in a model: encoder, feature map and head. A message may have 16 bytes for each."""
    max_measures: int = 20
    """Different statistics that are sent of the same data, over all runs. An equal request is answered again."""
    min_samples: int = 2
    """Fewest training examples with which this site takes part."""
    min_samples_per_feature: float = 2.0
    """Statistics of fewer examples than this, times the number of features, are not sent."""
    min_samples_per_class: int = 5
    """Examples of classes with fewer are left out of statistics."""
    calibrations: tuple[str, ...] = ("ffc", "ffc-gcv", "ffc-balanced", "lda", "ncm", "fedcof")
    """Calibrations that an experiment may have, in addition to components in `allow`. `ccvr` sends second moments for
    each class, and `oracle` the features of each example."""

    def __post_init__(self) -> None:
        for name in ("max_rounds", "max_epochs", "max_parameters", "max_measures"):
            if getattr(self, name) < 0:
                raise ConfigError(f"limits.{name} must not be negative, got {getattr(self, name)}")
        for name, least in (("min_samples", 1), ("min_samples_per_class", 1), ("min_samples_per_feature", 0)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"limits.{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def max_message_bytes(self) -> int:
        return 16 * self.max_parameters

    def min_measured(self, dim: int) -> int:
        """Fewest examples whose statistics of `dim` features are sent."""
        return max(self.min_samples, ceil(self.min_samples_per_feature * dim))


def check_experiment(experiment: Experiment, limits: SiteLimits, allow: frozenset[str]) -> None:
    """Raise a ConfigError that names the first limit that this experiment exceeds. Nothing is read or built before."""
    _check_at_most("rounds", experiment.rounds, "max_rounds", limits.max_rounds)
    if experiment.local is not None:
        epochs = experiment.local.epochs + experiment.local.head_epochs
        _check_at_most("local.epochs with local.head_epochs", epochs, "max_epochs", limits.max_epochs)
    personal_epochs: int = getattr(experiment.personalization, "epochs", 0)
    _check_at_most("personalization.epochs", personal_epochs, "max_epochs", limits.max_epochs)
    kinds = [] if experiment.calibration is None else [kind_of(experiment.calibration)]
    if isinstance(experiment.model.head, RidgeStart):
        kinds.append(FfcGcv.kind)  # measured before round 0 (`Assembly.config`)
    for kind in kinds:
        if kind not in limits.calibrations and kind not in allow:
            raise ConfigError(
                f"calibration {kind!r} is not allowed here: site.toml lists "
                f"{', '.join(limits.calibrations) or 'none'} under limits.calibrations"
            )
    table = experiment.partition.clients * max(len(experiment.data.classes), 1)
    if table > MAX_LABEL_COUNTS:
        raise ConfigError(f"clients times classes is {table}; a site allows at most {MAX_LABEL_COUNTS}")


def check_data(experiment: Experiment, configured: str) -> None:
    """Raise a ConfigError if the experiment would make this site read anything but its configured data."""
    if isinstance(experiment.partition, Stored):
        raise ConfigError(
            f"partition.kind = 'stored' names the file {experiment.partition.path!r}; a site reads nothing but the "
            "data in its own config"
        )
    if isinstance(experiment.partition, Sites):
        if not is_own_data(configured):
            raise ConfigError(
                "partition.kind = 'sites' needs data = folder:PATH or data = arrays:FILE.npz in the site's config, "
                f"got data = {configured!r}"
            )
    elif experiment.data.name != configured or configured.startswith(("folder:", "arrays:")):
        raise ConfigError(
            f"the experiment partitions {experiment.data.name!r}, but the site's config has data = {configured!r}; a "
            "site reads nothing else: name a data set that all sites have in both, or use partition.kind = 'sites'"
        )


def is_own_data(configured: str) -> bool:
    """Whether the data are this site's own files or function, not a data set that all sites have."""
    return ":" in configured


def check_size(experiment: Experiment, input_shape: tuple[int, ...], dtype: str, classes: int, limit: int) -> None:
    """Raise a ConfigError if the model is too large. It is counted on torch's meta device, which takes no memory."""
    try:
        with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights from a file are not copied to this device
            encoder = experiment.model.encoder.build(input_shape).eval()
            dim = int(encoder(torch.zeros(1, *input_shape, dtype=getattr(torch, dtype))).shape[1])
    except (RuntimeError, TypeError, NotImplementedError):
        return  # a user's encoder that cannot be built without memory: it is counted when it is built
    total = sum(tensor.numel() for tensor in [*encoder.parameters(), *encoder.buffers()])
    if experiment.model.feature_map is not None:
        total += dim * experiment.model.feature_map.dim
        dim = experiment.model.feature_map.dim
    check_count(total + dim * classes, limit)


def check_count(num_parameters: int, limit: int) -> None:
    _check_at_most("the number of parameters", num_parameters, "max_parameters", limit)


def _check_at_most(what: str, given: int, name: str, limit: int) -> None:
    if given > limit:
        raise ConfigError(f"{what} is {given}; this site allows at most {limit} (limits.{name} in site.toml)")
