"""One upload instead of training: a frozen encoder, and a head in closed form from everybody's statistics.

The result does not depend on how the examples are divided among clients, if every client may send its statistics
(`min_samples = 1`).
"""

from spherefed.calibration import FfcGcv
from spherefed.data.partition import Dirichlet
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import EfficientNetLite0
from spherefed.nn.heads import Orthonormal
from spherefed.recipes.methods import random_features


def digits_one_shot() -> Experiment:
    """Random Fourier features of the pixels; λ is chosen by generalized cross-validation."""
    return Experiment(
        name="digits-one-shot",
        rounds=0,
        data=Data(name="digits"),
        partition=Dirichlet(alpha=0.1, clients=10),
        model=random_features(),
        calibration=FfcGcv(),
    )


def cifar100_one_shot() -> Experiment:
    """CIFAR-100 with a pretrained encoder (extra `pretrained`), 100 clients."""
    return Experiment(
        name="cifar100-one-shot",
        rounds=0,
        data=Data(name="cifar100"),
        partition=Dirichlet(alpha=0.1, clients=100),
        model=Model(encoder=EfficientNetLite0(), frozen=True, head=Orthonormal(), normalize=True),
        calibration=FfcGcv(),
    )
