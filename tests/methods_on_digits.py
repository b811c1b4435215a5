"""The methods that every engine has to agree on, on a few digits, which every process has."""

from typing import Any

from small import tiny
from spherefed.algorithms import fednova, fedrep
from spherefed.calibration import Ccvr
from spherefed.experiment import Data, Experiment, Model
from spherefed.losses import CrossEntropy
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Learned, Orthonormal
from spherefed.training import LocalTraining


def spherefed(**changes: Any) -> Experiment:
    """On digits, which every process has; few examples, for speed."""
    values: dict[str, Any] = {
        "deadline": 5.0,
        "data": Data(examples=200),
        "local": LocalTraining(lr=0.5, epochs=1, batch_size=16),
        "model": Model(encoder=Mlp(widths=(16,)), head=Orthonormal(), normalize=True),
    }
    return tiny(**values | changes)


def nova_ccvr() -> Experiment:
    return spherefed(
        model=Model(encoder=Mlp(widths=(16,)), head=Learned()),
        loss=CrossEntropy(),
        algorithm=fednova(),
        calibration=Ccvr(),
    )


def rep() -> Experiment:
    return spherefed(
        model=Model(encoder=Mlp(widths=(16,)), head=Learned()),
        loss=CrossEntropy(),
        algorithm=fedrep(),
        calibration=None,
        local=LocalTraining(lr=0.1, epochs=1, head_epochs=1, batch_size=16),
        data=Data(examples=200, held_out=0.2),
    )
