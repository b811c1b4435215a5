"""Hyperspherical federated learning: fixed orthonormal heads, unit features, closed-form calibration.

The front door for people who have federated code already:

>>> import torch, spherefed as sf
>>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32))
>>> model = sf.hyperspherical(encoder, num_classes=10)              # Eq. 4 head, unit features
>>> x, y = torch.randn(100, 64), torch.arange(100) % 10
>>> loss = sf.sphere_mse(model(x), y)                               # Eq. 5
>>> statistics = sf.statistics(model, [(x, y)])                     # Eq. 9; a + b merges clients, a - b forgets one
>>> model.calibrate(statistics).path                                # Eq. 10, in place
'cholesky'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spherefed.calibration.ffc import Statistics, statistics
    from spherefed.calibration.solution import Solution
    from spherefed.errors import SpherefedError
    from spherefed.experiment import Experiment
    from spherefed.losses import sphere_mse
    from spherefed.nn.classifier import Classifier, from_classifier, hyperspherical
    from spherefed.runner import load, run

__all__ = [
    "Classifier",
    "Experiment",
    "Solution",
    "SpherefedError",
    "Statistics",
    "from_classifier",
    "hyperspherical",
    "load",
    "run",
    "sphere_mse",
    "statistics",
]

_HOMES = {
    "calibration.ffc": ("Statistics", "statistics"),
    "calibration.solution": ("Solution",),
    "errors": ("SpherefedError",),
    "experiment": ("Experiment",),
    "losses": ("sphere_mse",),
    "nn.classifier": ("Classifier", "from_classifier", "hyperspherical"),
    "runner": ("load", "run"),
}


def __getattr__(name: str) -> Any:
    """Names are fetched when they are first used, so that `spherefed --help` need not wait for torch."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"spherefed.{module}"), name)
    raise AttributeError(f"module 'spherefed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
