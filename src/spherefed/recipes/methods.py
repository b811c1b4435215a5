"""Methods by name: functions that set a base algorithm, or an overlay (head, loss, calibration), of an experiment.

SphereFed consists of three values (head, loss, calibration) on any base algorithm, so every method is a `replace`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spherefed.calibration import Ccvr, Ffc, FfcGcv, Oracle
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, Model, with_settings
from spherefed.losses import CrossEntropy, MeanSquaredError
from spherefed.nn.encoders import Flatten
from spherefed.nn.feature_maps import RandomFourier
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.schema import suggest
from spherefed.server.algorithms import (
    Algorithm,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fednova,
    fedprox,
    fedyogi,
    moon,
    scaffold,
)

BASES: Mapping[str, Callable[[], Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": lambda: fedprox(mu=0.01),
    "fednova": fednova,
    "fedopt": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "moon": moon,
}
"""Base algorithms with default hyper-parameters; change them with `--set algorithm.…` or `spherefed tune`."""


def plain(experiment: Experiment) -> Experiment:
    """Only the base algorithm: a learned head, cross-entropy, no calibration."""
    model = replace(experiment.model, head=Learned(), normalize=False)
    return replace(experiment, model=model, loss=CrossEntropy(), calibration=None)


def with_ffc(experiment: Experiment) -> Experiment:
    """The base algorithm with FFC after training; it shows which part of SphereFed's gain comes from FFC alone."""
    return replace(plain(experiment), calibration=Ffc())


def with_gcv(experiment: Experiment) -> Experiment:
    """The base algorithm with FFC, whose ridge is chosen by generalized cross-validation."""
    return replace(plain(experiment), calibration=FfcGcv())


def with_ccvr(experiment: Experiment) -> Experiment:
    """The base algorithm with CCVR: the head is refitted on virtual features (Luo et al. 2021)."""
    return replace(plain(experiment), calibration=Ccvr())


def with_oracle(experiment: Experiment) -> Experiment:
    """The head is fine-tuned on the real features of all clients: the check of Table 4, not a federated method."""
    return replace(plain(experiment), calibration=Oracle())


def with_babu(experiment: Experiment) -> Experiment:
    """BABU: a fixed random head (Oh et al. 2021)."""
    base = plain(experiment)
    return replace(base, model=replace(base.model, head=FixedRandom()))


def with_spherefed(experiment: Experiment) -> Experiment:
    """SphereFed: fixed orthonormal head (Eq. 4), unit features, MSE (Eq. 5), FFC (Eq. 10)."""
    model = replace(experiment.model, head=Orthonormal(), normalize=True)
    return replace(experiment, model=model, loss=MeanSquaredError(), calibration=Ffc())


def random_features() -> Model:
    """Random Fourier features of the inputs. The bandwidth is the best of 0.3 to 0.8 on a validation part of digits."""
    return Model(
        encoder=Flatten(),
        frozen=True,
        feature_map=RandomFourier(dim=1024, bandwidth=0.6),
        head=Orthonormal(),
        normalize=True,
    )


def with_one_shot(experiment: Experiment) -> Experiment:
    """No training: random features of the inputs, and FFC with λ chosen by generalized cross-validation."""
    return replace(
        experiment,
        rounds=0,
        local=None,
        algorithm=fedavg(),
        cohort=None,
        calibrate_every=None,
        model=random_features(),
        loss=MeanSquaredError(),
        calibration=FfcGcv(),
        personalization=None,
        stack=0,
        compile=False,
        precision="fp32",
    )


OVERLAYS: Mapping[str, Callable[[Experiment], Experiment]] = {
    "ffc": with_ffc,
    "ffc-gcv": with_gcv,
    "ccvr": with_ccvr,
    "oracle": with_oracle,
    "babu": with_babu,
    "spherefed": with_spherefed,
    "one-shot": with_one_shot,
}

CALIBRATION_OVERLAYS = ("ffc", "ffc-gcv", "ccvr", "oracle")
"""Overlays that only add a calibration: they use the training run and the learning rate of the base algorithm."""

Settings = Mapping[str, Mapping[str, float]]
"""Method → tuned hyper-parameters by path, e.g. {"fedavg+spherefed": {"local.lr": 2.0}}."""


def with_base(experiment: Experiment, base: str) -> Experiment:
    """The experiment with this base algorithm."""
    if base not in BASES:
        raise ConfigError(f"unknown base algorithm {base!r}; {suggest(base, BASES)}")
    return replace(experiment, algorithm=BASES[base]())


def methods(experiment: Experiment, base: str, overlays: Sequence[str], tuned: Settings) -> dict[str, Experiment]:
    """The base algorithm, and each overlay on it, by name; with tuned hyper-parameters where they exist."""
    base_experiment = with_base(experiment, base)
    built = {base: with_tuned(plain(base_experiment), tuned.get(base, {}))}
    for overlay in overlays:
        if overlay not in OVERLAYS:
            raise ConfigError(f"unknown overlay {overlay!r}; {suggest(overlay, OVERLAYS)}")
        name = f"{base}+{overlay}"
        built[name] = with_tuned(OVERLAYS[overlay](base_experiment), tuned.get(tuning_key(name), {}))
    return built


def with_method(experiment: Experiment, method: str, tuned: Settings) -> Experiment:
    """The experiment with the method of this name, `BASE` or `BASE+OVERLAY`, and its tuned hyper-parameters.

    >>> from spherefed.recipes.experiments import digits
    >>> with_method(digits(), "fedprox+spherefed", {}).algorithm.prox_mu
    0.01
    """
    base, plus, overlay = method.partition("+")
    if base not in BASES and method in OVERLAYS:
        raise ConfigError(f"method {method!r} needs a base algorithm: write fedavg+{method}")
    return methods(experiment, base, [overlay] if plus else [], tuned)[method]


def tuning_key(method: str) -> str:
    """The name under which tuned hyper-parameters are stored; calibration overlays use those of their base."""
    base, _, overlay = method.partition("+")
    return base if overlay in CALIBRATION_OVERLAYS else method


def with_tuned(experiment: Experiment, values: Mapping[str, float]) -> Experiment:
    """The experiment with these hyper-parameters, given by path."""
    return with_settings(experiment, [f"{path}={value!r}" for path, value in values.items()])
