"""Hyperspherical federated learning: fixed orthonormal heads, unit features, closed-form calibration.

Whole experiments, from a recipe or with a network and data of your own:

>>> import spherefed as sf
>>> experiment = sf.recipe("digits", method="fedavg+spherefed", rounds=1, local={"epochs": 1})
>>> result = sf.run(experiment, progress=False)                     # data=(X, y), encoder=MyNet(), out="runs/mine"
>>> result.accuracy > 0.1, len(result.records()), result.model.num_classes
(True, 1, 10)

For people who have federated code already:

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
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spherefed.api.comparison import Comparison
    from spherefed.api.inputs import recipe
    from spherefed.api.result import Result
    from spherefed.api.running import Tuned, compare, iter_rounds, run, tune
    from spherefed.calibration import BalancedFfc, Ccvr, Context, FedCof, Ffc, FfcGcv, Lda, Ncm, Oracle
    from spherefed.calibration.ffc import Statistics, statistics
    from spherefed.calibration.refit import Refit
    from spherefed.calibration.solution import Solution
    from spherefed.client.corrections import DynamicRegularizer, GradientCorrection, ModelContrastive, Scaffold
    from spherefed.client.personalization import BlendedFfc, FineTune, LocalFfc, PersonalizationContext
    from spherefed.client.training import LocalTraining
    from spherefed.data.columns import ByColumn
    from spherefed.data.dataset import Dataset
    from spherefed.data.examples import Examples
    from spherefed.data.partition import Dirichlet, Iid, Natural, QuantitySkew, Shards, Sites, Stored
    from spherefed.errors import (
        CalibrationError,
        ConfigError,
        DataError,
        EngineError,
        FederationError,
        ModelError,
        RunError,
        SpherefedError,
    )
    from spherefed.experiment import Data, Experiment, Model
    from spherefed.losses import CrossEntropy, LossFunction, MeanSquaredError, sphere_mse
    from spherefed.nn.classifier import Classifier, from_classifier, hyperspherical
    from spherefed.nn.encoders import (
        VGG13,
        CallableEncoder,
        ConvNet,
        EfficientNetLite0,
        Flatten,
        Mlp,
        MobileNetV2,
        ResNet18,
        SENet18,
        SmallNet,
    )
    from spherefed.nn.feature_maps import RandomFourier, RandomRelu
    from spherefed.nn.heads import ClassifierHead, FixedRandom, Learned, Orthonormal, RidgeStart, SimplexEtf, Tammes
    from spherefed.runs.loading import load
    from spherefed.runs.runner import Engine, Progress
    from spherefed.server.algorithms import Algorithm
    from spherefed.server.optimizers import ServerAdagrad, ServerAdam, ServerSgd, ServerYogi
    from spherefed.server.reply_checks import Limits
    from spherefed.server.robust import (
        CentredClipping,
        CoordinateMedian,
        Krum,
        Mean,
        MultiKrum,
        NormClipping,
        TrimmedMean,
    )
    from spherefed.server.schedules import Constant, Cosine, MultiStep

__all__ = [
    "VGG13",
    "Algorithm",
    "BalancedFfc",
    "BlendedFfc",
    "ByColumn",
    "CalibrationError",
    "CallableEncoder",
    "Ccvr",
    "CentredClipping",
    "Classifier",
    "ClassifierHead",
    "Comparison",
    "ConfigError",
    "Constant",
    "Context",
    "ConvNet",
    "CoordinateMedian",
    "Cosine",
    "CrossEntropy",
    "Data",
    "DataError",
    "Dataset",
    "Dirichlet",
    "DynamicRegularizer",
    "EfficientNetLite0",
    "Engine",
    "EngineError",
    "Examples",
    "Experiment",
    "FedCof",
    "FederationError",
    "Ffc",
    "FfcGcv",
    "FineTune",
    "FixedRandom",
    "Flatten",
    "GradientCorrection",
    "Iid",
    "Krum",
    "Lda",
    "Learned",
    "Limits",
    "LocalFfc",
    "LocalTraining",
    "LossFunction",
    "Mean",
    "MeanSquaredError",
    "Mlp",
    "MobileNetV2",
    "Model",
    "ModelContrastive",
    "ModelError",
    "MultiKrum",
    "MultiStep",
    "Natural",
    "Ncm",
    "NormClipping",
    "Oracle",
    "Orthonormal",
    "PersonalizationContext",
    "Progress",
    "QuantitySkew",
    "RandomFourier",
    "RandomRelu",
    "Refit",
    "ResNet18",
    "Result",
    "RidgeStart",
    "RunError",
    "SENet18",
    "Scaffold",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSgd",
    "ServerYogi",
    "Shards",
    "SimplexEtf",
    "Sites",
    "SmallNet",
    "Solution",
    "SpherefedError",
    "Statistics",
    "Stored",
    "Tammes",
    "TrimmedMean",
    "Tuned",
    "__version__",
    "compare",
    "from_classifier",
    "hyperspherical",
    "iter_rounds",
    "load",
    "recipe",
    "run",
    "sphere_mse",
    "statistics",
    "tune",
]

_HOMES = {
    "api.comparison": ("Comparison",),
    "api.inputs": ("recipe",),
    "api.result": ("Result",),
    "api.running": ("Tuned", "compare", "iter_rounds", "run", "tune"),
    "calibration": ("BalancedFfc", "Ccvr", "Context", "FedCof", "Ffc", "FfcGcv", "Lda", "Ncm", "Oracle"),
    "calibration.ffc": ("Statistics", "statistics"),
    "calibration.refit": ("Refit",),
    "calibration.solution": ("Solution",),
    "client.corrections": ("DynamicRegularizer", "GradientCorrection", "ModelContrastive", "Scaffold"),
    "client.personalization": ("BlendedFfc", "FineTune", "LocalFfc", "PersonalizationContext"),
    "client.training": ("LocalTraining",),
    "data.columns": ("ByColumn",),
    "data.dataset": ("Dataset",),
    "data.examples": ("Examples",),
    "data.partition": ("Dirichlet", "Iid", "Natural", "QuantitySkew", "Shards", "Sites", "Stored"),
    "errors": (
        "CalibrationError",
        "ConfigError",
        "DataError",
        "EngineError",
        "FederationError",
        "ModelError",
        "RunError",
        "SpherefedError",
    ),
    "experiment": ("Data", "Experiment", "Model"),
    "losses": ("CrossEntropy", "LossFunction", "MeanSquaredError", "sphere_mse"),
    "nn.classifier": ("Classifier", "from_classifier", "hyperspherical"),
    "nn.encoders": (
        "VGG13",
        "CallableEncoder",
        "ConvNet",
        "EfficientNetLite0",
        "Flatten",
        "Mlp",
        "MobileNetV2",
        "ResNet18",
        "SENet18",
        "SmallNet",
    ),
    "nn.feature_maps": ("RandomFourier", "RandomRelu"),
    "nn.heads": ("ClassifierHead", "FixedRandom", "Learned", "Orthonormal", "RidgeStart", "SimplexEtf", "Tammes"),
    "runs.loading": ("load",),
    "runs.runner": ("Engine", "Progress"),
    "server.algorithms": ("Algorithm",),
    "server.optimizers": ("ServerAdagrad", "ServerAdam", "ServerSgd", "ServerYogi"),
    "server.reply_checks": ("Limits",),
    "server.robust": (
        "CentredClipping",
        "CoordinateMedian",
        "Krum",
        "Mean",
        "MultiKrum",
        "NormClipping",
        "TrimmedMean",
    ),
    "server.schedules": ("Constant", "Cosine", "MultiStep"),
}


def __getattr__(name: str) -> Any:
    """Names are fetched when they are first used, so that `spherefed --help` need not wait for torch."""
    if name == "__version__":
        return version("spherefed")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"spherefed.{module}"), name)
    raise AttributeError(f"module 'spherefed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
