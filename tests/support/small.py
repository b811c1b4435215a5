"""Experiments and data sets small enough to be run many times, shared by the tests."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherefed.assembly import Assembly, build_classifier, split_data
from spherefed.calibration import Ffc
from spherefed.data.examples import Augment, Examples
from spherefed.data.partition import Iid
from spherefed.data.sources import Dataset
from spherefed.engines.local import InProcess
from spherefed.experiment import Experiment, Model
from spherefed.federation import Fleet
from spherefed.gathering import Calibrated, calibrate
from spherefed.losses import MeanSquares
from spherefed.messages import ModelState
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import Orthonormal
from spherefed.training import LocalTraining
from spherefed.workbench import Workbench

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


def tiny(**changes: Any) -> Experiment:
    """SphereFed with FFC on four clients, three rounds."""
    values: dict[str, Any] = {
        "name": "tiny",
        "rounds": 3,
        "local": LocalTraining(lr=0.5, epochs=2, batch_size=8),
        "partition": Iid(clients=4),
        "model": Model(encoder=Mlp(widths=(8,)), head=Orthonormal(), normalize=True),
        "loss": MeanSquares(),
        "calibration": Ffc(),
        "stack": 0,  # one by one, whatever the size of the model: clients that are watched, or live elsewhere
    }
    return Experiment(**(values | changes))


def assembled(dataset: Dataset | None = None, **changes: Any) -> Assembly:
    """What `assembly.assemble` makes, from a data set that has no name."""
    experiment, data = tiny(**changes), dataset or blobs()
    classifier = build_classifier(experiment, data.input_shape, data.num_classes)
    return Assembly(experiment, data, split_data(experiment, data), Workbench(classifier))


def in_double(assembly: Assembly) -> Assembly:
    """The same federation, computed in float64: what rounding hides in float32 shows, and chaos does not."""
    data = assembly.dataset
    assert data.train.prepare is None
    train = Examples(data.train.inputs.double(), data.train.labels)
    bench = Workbench(copy.deepcopy(assembly.bench.classifier).double(), assembly.experiment.algorithm.share)
    return Assembly(assembly.experiment, replace(data, train=train), assembly.partition, bench)


def in_process(assembly: Assembly) -> InProcess:
    return InProcess(assembly.client, len(assembly.partition.parts))


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
