"""Experiments and data sets small enough to be run many times, shared by the tests."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spherefed.assembly import Assembly, build_local_model, build_parts, split_data
from spherefed.calibration import Ffc
from spherefed.client.client_state import ClientState
from spherefed.client.handle import Client, handle
from spherefed.client.local_model import LocalModel
from spherefed.client.training import LocalTraining, Trained, train
from spherefed.data.examples import Augment, Examples
from spherefed.data.partition import Iid
from spherefed.data.sources import Dataset
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, Model
from spherefed.losses import MeanSquaredError
from spherefed.messages import ModelState, Request, TrainReply
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Orthonormal
from spherefed.server.aggregation import Aggregate, Aggregator
from spherefed.server.collection import Calibrated, calibrate
from spherefed.server.federation import Fleet

CPU = torch.device("cpu")


def blobs(num_train: int = 90, num_test: int = 30, num_classes: int = 3, augment: Augment | None = None) -> Dataset:
    """Gaussian blobs as 1×2×3 images, one centre per class."""
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=2, size=(num_classes, 6))
    labels = np.arange(num_train + num_test) % num_classes
    inputs = (centres[labels] + rng.normal(size=(len(labels), 6))).reshape(-1, 1, 2, 3)
    x, y = torch.from_numpy(inputs).float(), torch.from_numpy(labels)
    return Dataset(
        name="blobs",
        train=Examples(x[:num_train], y[:num_train]),
        test=Examples(x[num_train:], y[num_train:]),
        classes=tuple(map(str, range(num_classes))),
        augment=augment,
    )


def random_labels(num: int, num_classes: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(num_classes, size=num)


def tiny(**changes: Any) -> Experiment:
    """SphereFed with FFC on four clients, three rounds."""
    values: dict[str, Any] = {
        "name": "tiny",
        "rounds": 3,
        "local": LocalTraining(lr=0.5, epochs=2, batch_size=8),
        "partition": Iid(clients=4),
        "model": Model(encoder=Mlp(widths=(8,)), head=Orthonormal(), normalize=True),
        "loss": MeanSquaredError(),
        "calibration": Ffc(),
        "stack": 0,  # one by one, whatever the size of the model: clients that are watched, or live elsewhere
    }
    return Experiment(**(values | changes))


def assembled(dataset: Dataset | None = None, **changes: Any) -> Assembly:
    """What `assembly.assemble` builds, from a data set that has no name."""
    experiment, data = tiny(**changes), dataset or blobs()
    return build_parts(experiment, data, split_data(experiment, data))


def in_double(assembly: Assembly) -> Assembly:
    """The same federation in float64, where rounding does not hide differences and small errors do not grow."""
    data, experiment = assembly.dataset, replace(assembly.experiment, stack=0)
    assert data.train.prepare is None
    train = Examples(data.train.inputs.double(), data.train.labels)
    local_model = build_local_model(experiment, copy.deepcopy(assembly.local_model.classifier).double())
    return Assembly(experiment, replace(data, train=train), assembly.partition, local_model)


def with_stack(assembly: Assembly, size: int) -> Assembly:
    """The same federation with so many clients stacked; 0: one at a time."""
    experiment = replace(assembly.experiment, stack=size)
    local_model = build_local_model(experiment, assembly.local_model.classifier)
    return Assembly(experiment, assembly.dataset, assembly.partition, local_model)


def in_process(assembly: Assembly) -> InProcess:
    return InProcess(assembly.clients)


def handle_one(client: Client, request: Request, state: ClientState | None) -> Any:
    """The reply and the new state of one client."""
    ((reply, new_state),) = handle([client], request, [state])
    return reply, new_state


def train_one(local_model: LocalModel, examples: Examples, *, order: np.random.Generator, **settings: Any) -> Trained:
    """Train one client."""
    (trained,) = train(local_model, [examples], [order], **settings)
    return trained


def aggregate(replies: Iterable[TrainReply], **settings: Any) -> Aggregate | None:
    """The mean of these replies."""
    aggregator = Aggregator(**settings)
    for reply in replies:
        aggregator.add(reply)
    return aggregator.result()


def calibrated(assembly: Assembly, fleet: Fleet, model: ModelState, calibration: Ffc | None = None) -> Calibrated:
    """Calibrate behind the last round."""
    context = assembly.context(model, assembly.experiment.rounds)
    return calibrate(calibration or Ffc(), fleet, model, context)


def save_arrays(path: Path, dataset: Dataset) -> str:
    """Write a data set as an .npz file; the name under which an experiment finds it."""
    np.savez(
        path,
        images=dataset.train.inputs.numpy(),
        labels=dataset.train.labels.numpy(),
        test_images=dataset.test.inputs.numpy(),
        test_labels=dataset.test.labels.numpy(),
    )
    return f"arrays:{path}"
