"""Which values of an experiment are allowed, alone and together."""

from typing import TYPE_CHECKING

from spherefed.calibration import Ffc, FfcGcv
from spherefed.client.personalization import BlendedFfc, FineTune
from spherefed.data.partition import Sites
from spherefed.errors import ConfigError
from spherefed.nn.heads import Learned, RidgeStart
from spherefed.schema import kind_of, shown

if TYPE_CHECKING:
    from spherefed.experiment.values import Experiment

SITES = "sites"
"""The name of data that only the sites have."""
MAX_ROUNDS = 10**6


def check_experiment(e: "Experiment") -> None:
    """Raise a ConfigError for values that are out of range, or that do not go together."""
    if not 0 < len(e.name) <= 100 or "/" in e.name or e.name[0] == "." or not e.name.isprintable():
        raise ConfigError(f"name must be a plain word for a folder, got {shown(e.name)}; for example 'mine'")
    if e.rounds > MAX_ROUNDS:
        raise ConfigError(f"rounds must be at most {MAX_ROUNDS}, got {shown(e.rounds)}")
    for name, least in (("rounds", 0), ("seed", 0), ("min_samples", 1), ("evaluate_every", 1)):
        if getattr(e, name) < least:
            raise ConfigError(f"{name} must be at least {least}, got {shown(getattr(e, name))}")
    if e.calibrate_every is not None and (e.calibration is None or e.calibrate_every < 1):
        raise ConfigError(
            f"calibrate_every must be at least 1 and needs a calibration, got {e.calibrate_every} with "
            f"calibration {'none' if e.calibration is None else kind_of(e.calibration)!r}; "
            "set calibration.kind=ffc, for example"
        )
    if e.cohort is not None and not 1 <= e.cohort <= e.partition.clients:
        raise ConfigError(f"cohort must be between 1 and the number of clients, {e.partition.clients}; got {e.cohort}")
    _check_training(e)
    if e.local is not None and e.algorithm.normalize_steps and e.algorithm.prox_mu:  # no schedule rises above local.lr
        _check_normalizable(e.local.lr, e.local.momentum, e.algorithm.prox_mu)
    _check_parts(e)
    _check_stack(e)
    _check_sites(e)


def _check_training(e: "Experiment") -> None:
    """Check that something is trained, or that a calibration replaces training."""
    frozen = e.model.frozen
    if e.rounds and e.local is None:
        raise ConfigError("local is required: only an experiment with rounds = 0 trains nothing")
    if frozen and e.algorithm.share != "all":
        raise ConfigError(
            f"algorithm.share = {e.algorithm.share!r} keeps a part of the model private, which model.frozen = "
            "true does not allow: a frozen encoder is the same at every client"
        )
    if e.rounds and frozen and e.model.adapter is None and not isinstance(e.model.head, Learned | RidgeStart):
        raise ConfigError(
            f"nothing is trained with model.frozen = true and the fixed head {kind_of(e.model.head)!r}: "
            "set rounds = 0, use head 'learned', or add a model.adapter"
        )
    if not e.rounds and e.model.adapter is not None:
        raise ConfigError(f"rounds = 0 leaves model.adapter {kind_of(e.model.adapter)!r} untrained: leave it out")
    if isinstance(e.model.head, RidgeStart):
        _check_ridge_start(e)
    if not e.rounds and not frozen:
        raise ConfigError("rounds = 0 needs model.frozen = true: an encoder that is to be trained needs rounds")
    if not e.rounds and e.calibration is None and e.personalization is None:
        raise ConfigError("rounds = 0 needs a calibration, which computes the head; for example 'ffc-gcv'")


def _check_ridge_start(e: "Experiment") -> None:
    """Whether there is a training to start, and a head that all clients share."""
    if not e.rounds:
        raise ConfigError("head 'ridge-start' starts a training: with rounds = 0, use calibration 'ffc-gcv' alone")
    if e.algorithm.share != "all":
        raise ConfigError(f"head 'ridge-start' is shared by all, got algorithm.share = {e.algorithm.share!r}")
    if not e.model.normalize:
        raise ConfigError("head 'ridge-start' is solved from unit features: set model.normalize = true")


def _check_sites(e: "Experiment") -> None:
    """Check that everything is set that sites cannot derive from their own data, and how long the server waits."""
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
    if e.deadline is not None and not 0 < e.deadline < float("inf"):
        raise ConfigError(f"deadline must be a positive number of seconds or none, got {e.deadline}")
    if not 0 <= e.quorum <= 1:
        raise ConfigError(f"quorum must be between 0 and 1, got {e.quorum}")


def _check_stack(e: "Experiment") -> None:
    """Check that clients can be stacked, as far as this does not depend on the model."""
    if e.stack is not None and e.stack < 0:
        raise ConfigError(f"stack must not be negative, got {e.stack}")
    if e.stack and (which := e.stacking_blocker):
        raise ConfigError(f"stack = {e.stack} does not go with {which}; use stack = 0")


def _check_parts(e: "Experiment") -> None:
    """Check that sharing, calibration and personalization are compatible."""
    share, personal = e.algorithm.share, e.personalization
    head_epochs = 0 if e.local is None else e.local.head_epochs
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
    if isinstance(personal, FineTune) and e.local is None:
        raise ConfigError("personalization 'fine-tune' needs local: batch size, momentum and weight decay")
    if personal is not None and not e.data.held_out:
        raise ConfigError(
            "personalization is evaluated on clients' own examples: data.held_out must be above 0, got 0; 0.15 is usual"
        )
    if isinstance(personal, BlendedFfc) and not isinstance(e.calibration, Ffc | FfcGcv):
        raise ConfigError("personalization 'blended-ffc' needs calibration 'ffc' or 'ffc-gcv', whose sums it blends in")

    _check_batch_statistics(e)


def _check_batch_statistics(e: "Experiment") -> None:
    """Check that the treatment of running statistics is compatible with the other parts."""
    policy, share = e.model.batch_statistics, e.algorithm.share
    if policy == "reestimate" and share == "head":
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


def _check_normalizable(lr: float, momentum: float, prox_mu: float) -> None:
    """Reject FedNova if a step could have a negative weight; this is impossible for every τ iff ημ ≤ (1 − √ρ)²."""
    limit = (1 - momentum**0.5) ** 2
    if lr * prox_mu > limit:
        raise ConfigError(
            f"FedNova with prox_mu {prox_mu} and momentum {momentum} needs lr · prox_mu <= (1 − √momentum)² = "
            f"{limit:.4g}, got {lr * prox_mu:.4g}; lower local.lr, local.momentum or algorithm.prox_mu"
        )
