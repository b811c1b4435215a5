"""The methods that every engine has to agree on, on a few digits, which every process has."""

from pathlib import Path
from typing import Any

import pytest

from small import tiny
from spherefed import runner
from spherefed.algorithms import fednova, fedrep
from spherefed.calibration import Ccvr
from spherefed.engines.local import InProcess
from spherefed.experiment import Data, Experiment, Model
from spherefed.losses import CrossEntropy
from spherefed.messages import Failure
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Learned, Orthonormal
from spherefed.runs import RunDirectory
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


def without_clients(experiment: Experiment, lost: set[int], out: Path) -> dict[str, Any]:
    """What the local engine makes of it when these clients fail at everything."""

    class Lossy(InProcess):
        def ask(self, clients: Any, request: Any) -> Any:
            for answer in super().ask(clients, request):
                yield Failure(answer.client, "lost") if answer.client in lost else answer

    def hire(assembly: Any, engine: Any, directory: RunDirectory) -> InProcess:
        return Lossy(
            assembly.client, experiment.partition.clients, directory.memory() if experiment.keeps_memory else None
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_fleet", hire)
        for _ in runner.run(experiment, out):
            pass
    return RunDirectory(out).result()
