"""Methods by name, as changes of an experiment: a base algorithm, and what can be laid over it.

SphereFed is three values (head, loss, calibration) on any base, so every method here is a `replace`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spherefed.algorithms import (
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
from spherefed.calibration import Ccvr, Ffc, FfcGcv, Oracle
from spherefed.errors import ConfigError
from spherefed.experiment import Experiment, changed
from spherefed.losses import CrossEntropy, MeanSquares
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal
from spherefed.schema import nearest

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
"""Base algorithms, with values to start from; `--set algorithm.…` and `spherefed tune` change them."""


def plain(experiment: Experiment) -> Experiment:
    """The base algorithm itself: a learned head, cross-entropy, no calibration."""
    model = replace(experiment.model, head=Learned(), normalize=False)
    return replace(experiment, model=model, loss=CrossEntropy(), calibration=None)


def with_ffc(experiment: Experiment) -> Experiment:
    """The base algorithm, its head calibrated by FFC after training: how much of SphereFed's gain is FFC alone."""
    return replace(plain(experiment), calibration=Ffc())


def with_gcv(experiment: Experiment) -> Experiment:
    """FFC whose ridge is chosen by generalised cross-validation from the summed statistics."""
    return replace(plain(experiment), calibration=FfcGcv())


def with_ccvr(experiment: Experiment) -> Experiment:
    """The head refitted on virtual features (Luo et al. 2021)."""
    return replace(plain(experiment), calibration=Ccvr())


def with_oracle(experiment: Experiment) -> Experiment:
    """The head fine-tuned on everybody's real features: Table 4's sanity check, not a federated method."""
    return replace(plain(experiment), calibration=Oracle())


def with_babu(experiment: Experiment) -> Experiment:
    """A random head that is never trained (Oh et al. 2021)."""
    base = plain(experiment)
    return replace(base, model=replace(base.model, head=FixedRandom()))


def with_spherefed(experiment: Experiment) -> Experiment:
    """Fixed orthonormal head (Eq. 4), unit features, MSE (Eq. 5), FFC (Eq. 10)."""
    model = replace(experiment.model, head=Orthonormal(), normalize=True)
    return replace(experiment, model=model, loss=MeanSquares(), calibration=Ffc())


OVERLAYS: Mapping[str, Callable[[Experiment], Experiment]] = {
    "ffc": with_ffc,
    "ffc-gcv": with_gcv,
    "ccvr": with_ccvr,
    "oracle": with_oracle,
    "babu": with_babu,
    "spherefed": with_spherefed,
}

CALIBRATES = ("ffc", "ffc-gcv", "ccvr", "oracle")
"""Overlays that only calibrate: they share the base's training run, and its learning rate."""

Settings = Mapping[str, Mapping[str, float]]
"""Method → tuned values by path, e.g. {"fedavg+spherefed": {"local.lr": 2.0}}."""


def on_base(experiment: Experiment, base: str) -> Experiment:
    """The experiment with this base algorithm."""
    if base not in BASES:
        raise ConfigError(f"unknown base algorithm {base!r}; {nearest(base, BASES)}")
    return replace(experiment, algorithm=BASES[base]())


def methods(experiment: Experiment, base: str, overlays: Sequence[str], tuned: Settings) -> dict[str, Experiment]:
    """The base and each overlay on it, by name, with tuned values where there are some."""
    on = on_base(experiment, base)
    built = {base: tuned_by(plain(on), tuned.get(base, {}))}
    for overlay in overlays:
        if overlay not in OVERLAYS:
            raise ConfigError(f"unknown overlay {overlay!r}; {nearest(overlay, OVERLAYS)}")
        name = f"{base}+{overlay}"
        built[name] = tuned_by(OVERLAYS[overlay](on), tuned.get(tuning_key(name), {}))
    return built


def tuning_key(method: str) -> str:
    """Under which name a method's tuned values are found: what only calibrates shares those of its base."""
    base, _, overlay = method.partition("+")
    return base if overlay in CALIBRATES else method


def tuned_by(experiment: Experiment, values: Mapping[str, float]) -> Experiment:
    """The experiment with tuned values by path."""
    return changed(experiment, [f"{path}={value!r}" for path, value in values.items()])
