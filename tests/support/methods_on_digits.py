"""The methods that every engine has to agree on, on a few digits, which every process has."""

from pathlib import Path
from typing import Any

import pytest

from spherefed.calibration import Ccvr, FfcGcv
from spherefed.client.training import LocalTraining
from spherefed.engines.local import InProcess
from spherefed.experiment import Data, Experiment, Model
from spherefed.losses import CrossEntropy
from spherefed.messages import Failure
from spherefed.nn.encoders import Mlp, SmallNet
from spherefed.nn.feature_maps import RandomFourier
from spherefed.nn.heads import Learned, Orthonormal, RidgeStart
from spherefed.runs import runner
from spherefed.runs.directory import RunDirectory
from spherefed.server.algorithms import fednova, fedrep
from support.small import tiny


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


def one_shot() -> Experiment:
    """A frozen encoder and no round at all."""
    return spherefed(
        rounds=0,
        local=None,
        calibration=FfcGcv(),
        model=Model(
            encoder=SmallNet(norm="batch"),
            frozen=True,
            feature_map=RandomFourier(dim=32),
            head=Orthonormal(),
            normalize=True,
        ),
    )


def ridge_start() -> Experiment:
    """One upload for the first head, then training."""
    return spherefed(model=Model(encoder=Mlp(widths=(16,)), head=RidgeStart(), normalize=True), calibration=None)


def without_clients(experiment: Experiment, lost: set[int], out: Path) -> dict[str, Any]:
    """What the local engine makes of it when these clients fail at everything."""

    class Lossy(InProcess):
        def ask(self, clients: Any, request: Any) -> Any:
            for answer in super().ask(clients, request):
                yield Failure(answer.client, "lost") if answer.client in lost else answer

    def make_fleet(assembly: Any, engine: Any, directory: RunDirectory, *_: Any) -> InProcess:
        return Lossy(assembly.clients, directory.client_states() if experiment.keeps_client_state else None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_fleet", make_fleet)
        for _ in runner.run(experiment, out):
            pass
    return RunDirectory(out).result()
