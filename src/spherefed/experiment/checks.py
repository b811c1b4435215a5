"""Which parts of an experiment go together: checks of parts that only some experiments have."""

from typing import TYPE_CHECKING

from spherefed.calibration import Ffc, FfcGcv
from spherefed.client.personalization import BlendedFfc, FineTune
from spherefed.data.partition import Sites
from spherefed.errors import ConfigError
from spherefed.nn.heads import Learned, RidgeStart
from spherefed.schema import kind_of

if TYPE_CHECKING:
    from spherefed.experiment.values import Experiment

SITES = "sites"
"""The name of data that only the sites have."""


def check_calibrate_every(e: "Experiment") -> None:
    """Check that there is a calibration to repeat, and how often."""
    if e.calibration is None or (e.calibrate_every is not None and e.calibrate_every < 1):
        raise ConfigError(
            f"calibrate_every must be at least 1 and needs a calibration, got {e.calibrate_every} with "
            f"calibration {'none' if e.calibration is None else kind_of(e.calibration)!r}; "
            "set calibration.kind=ffc, for example"
        )


def check_frozen(e: "Experiment") -> None:
    """Check that a frozen encoder is the same at every client, and that something else is trained."""
    if e.algorithm.share != "all":
        raise ConfigError(
            f"algorithm.share = {e.algorithm.share!r} keeps a part of the model private, which model.frozen = "
            "true does not allow: a frozen encoder is the same at every client"
        )
    if e.rounds and e.model.adapter is None and not isinstance(e.model.head, Learned | RidgeStart):
        raise ConfigError(
            f"nothing is trained with model.frozen = true and the fixed head {kind_of(e.model.head)!r}: "
            "set rounds = 0, use head 'learned', or add a model.adapter"
        )


def check_without_rounds(e: "Experiment") -> None:
    """Check that nothing is left to train, and that a calibration replaces training."""
    if e.model.adapter is not None:
        raise ConfigError(f"rounds = 0 leaves model.adapter {kind_of(e.model.adapter)!r} untrained: leave it out")
    if isinstance(e.model.head, RidgeStart):
        raise ConfigError("head 'ridge-start' starts a training: with rounds = 0, use calibration 'ffc-gcv' alone")
    if not e.model.frozen:
        raise ConfigError("rounds = 0 needs model.frozen = true: an encoder that is to be trained needs rounds")
    if e.calibration is None and e.personalization is None:
        raise ConfigError("rounds = 0 needs a calibration, which computes the head; for example 'ffc-gcv'")


def check_ridge_start(e: "Experiment") -> None:
    """Check that the head is shared by all clients and is solved from unit features."""
    if e.algorithm.share != "all":
        raise ConfigError(f"head 'ridge-start' is shared by all, got algorithm.share = {e.algorithm.share!r}")
    if not e.model.normalize:
        raise ConfigError("head 'ridge-start' is solved from unit features: set model.normalize = true")


def check_normalizable(lr: float, momentum: float, prox_mu: float) -> None:
    """Reject FedNova if a step could have a negative weight; this is impossible for every τ iff ημ ≤ (1 − √ρ)²."""
    limit = (1 - momentum**0.5) ** 2
    if lr * prox_mu > limit:
        raise ConfigError(
            f"FedNova with prox_mu {prox_mu} and momentum {momentum} needs lr · prox_mu <= (1 − √momentum)² = "
            f"{limit:.4g}, got {lr * prox_mu:.4g}; lower local.lr, local.momentum or algorithm.prox_mu"
        )


def check_private_parts(e: "Experiment", head_epochs: int) -> None:
    """Check that clients can keep a part of the model, or train the head in epochs of its own."""
    share = e.algorithm.share
    if head_epochs and e.model.frozen and e.model.adapter is None:
        raise ConfigError("local.head_epochs needs an encoder that is trained too, got model.frozen = true")
    if not isinstance(e.model.head, Learned | RidgeStart) and (share == "head" or head_epochs):
        which = "algorithm.share = 'head'" if share == "head" else "local.head_epochs"
        raise ConfigError(f"{which} needs a head that is learned, got {kind_of(e.model.head)!r}")
    if share != "all" and e.calibration is not None:
        raise ConfigError(
            f"calibration needs a model that all clients share, got algorithm.share = {share!r}; "
            "set calibration=none or algorithm.share=all"
        )


def check_personalization(e: "Experiment") -> None:
    """Check that the parts exist that a personalization uses, and examples to evaluate it on."""
    if isinstance(e.personalization, FineTune) and e.local is None:
        raise ConfigError("personalization 'fine-tune' needs local: batch size, momentum and weight decay")
    if not e.data.held_out:
        raise ConfigError(
            "personalization is evaluated on clients' own examples: data.held_out must be above 0, got 0; 0.15 is usual"
        )
    if isinstance(e.personalization, BlendedFfc) and not isinstance(e.calibration, Ffc | FfcGcv):
        raise ConfigError("personalization 'blended-ffc' needs calibration 'ffc' or 'ffc-gcv', whose sums it blends in")


def check_batch_statistics(e: "Experiment") -> None:
    """Check that running statistics that are not averaged are compatible with the other parts."""
    policy = e.model.batch_statistics
    if policy == "reestimate" and e.algorithm.share == "head":
        raise ConfigError("model.batch_statistics 'reestimate' needs an encoder that all share, got share = 'head'")
    if policy == "local" and e.calibration is not None:
        raise ConfigError(
            "calibration needs a model that all clients share, got model.batch_statistics = 'local'; "
            "use personalization 'local-ffc' or other statistics"
        )
    if policy == "local" and not e.data.held_out:
        raise ConfigError(
            "model.batch_statistics = 'local' leaves no model that the test set could be tried on: "
            "data.held_out must be above 0, for evaluation on clients' own examples"
        )


def check_sites(e: "Experiment") -> None:
    """Check that everything is set that sites cannot derive from their own data."""
    data, on_sites = e.data, isinstance(e.partition, Sites)
    if data.name == SITES and not on_sites:
        raise ConfigError(f"data.name = {SITES!r} needs partition.kind = 'sites', got {kind_of(e.partition)!r}")
    if on_sites and not data.classes:
        raise ConfigError("partition.kind = 'sites' needs data.classes: all class names, in the order of labels")
    if data.name == SITES and not data.held_out:
        raise ConfigError(
            f"with data.name = {SITES!r} the server has no test set, so data.held_out must be above 0, "
            "for evaluation at each site; 0.2 is usual"
        )
    if on_sites and (data.examples is not None or data.validation or data.pooled):
        raise ConfigError("data.examples, data.validation and data.pooled do not go with partition.kind = 'sites'")
