"""The work that every contestant does: data, partition, model and cohorts come from one experiment, made once."""

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from material import Material
from torch import nn

from spherefed.assembly import Assembly, assemble
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Iid
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import ConvNet, Mlp
from spherefed.server.federation import sample
from spherefed.server.schedules import Constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """FedAvg with a learned head, evaluated after every round; the first rounds are not timed."""

    title: str
    experiment: Experiment
    warm_up: int


def overhead_bound() -> Workload:
    """Digits over 100 clients, 10 a round, a tiny net: a client takes one step or two, the rest is overhead."""
    return Workload(
        title="overhead-bound: digits, 100 clients, 10 a round, MLP 64-64-10",
        warm_up=5,
        experiment=Experiment(
            name="overhead",
            rounds=205,
            data=Data(name="digits"),
            partition=Dirichlet(alpha=0.5, clients=100, min_size=2),
            model=Model(encoder=Mlp(widths=(64,))),
            local=LocalTraining(lr=0.05, epochs=1, batch_size=32, momentum=0.0, weight_decay=0.0),
            schedule=Constant(),
            cohort=10,
        ),
    )


def workload(name: str, scratch: Path) -> Workload:
    """By the name that the command line knows."""
    return {"overhead": overhead_bound, "compute": lambda: compute_bound(scratch)}[name]()


def compute_bound(scratch: Path) -> Workload:
    """2,000 random images of 100 classes over 10 clients, all in every round, the paper's ConvNet."""
    path = scratch / "images.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        parts = {"": 2000, "test_": 200}
        images = {f"{p}images": rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8) for p, n in parts.items()}
        labels = {f"{p}labels": rng.permutation(n) % 100 for p, n in parts.items()}
        unfinished = scratch / f"{os.getpid()}.npz"  # contestants begin side by side: nobody may see half a file
        np.savez(unfinished, **images, **labels)
        unfinished.replace(path)
    return Workload(
        title="compute-bound: 2,000 images of 32×32, 10 clients, all in every round, ConvNet",
        warm_up=1,
        experiment=Experiment(
            name="compute",
            rounds=3,
            data=Data(name=f"arrays:{path}"),
            partition=Iid(clients=10),
            model=Model(encoder=ConvNet()),
            local=LocalTraining(lr=0.01, epochs=1, batch_size=64, momentum=0.9, weight_decay=0.0),
            schedule=Constant(),
        ),
    )


def material_of(workload: Workload) -> Material:
    """The workload without this library."""
    experiment = workload.experiment
    assembly = assemble(experiment)
    train, test, local = assembly.dataset.train, assembly.dataset.test, experiment.local_training
    assert train.indices is None
    assert train.prepare is None
    assert local.epochs == 1
    assert local.weight_decay == 0
    clients, plan = range(len(assembly.partition.parts)), assembly.plan()
    return Material(
        inputs=train.inputs,
        labels=train.labels,
        test_inputs=test.inputs,
        test_labels=test.labels,
        parts=[torch.from_numpy(part) for part in assembly.partition.parts],
        cohorts=[list(sample(clients, plan, t)) for t in range(experiment.rounds)],
        net=_plain(assembly),
        num_classes=assembly.dataset.num_classes,
        lr=local.lr,
        batch_size=local.batch_size,
        momentum=local.momentum,
        warm_up=workload.warm_up,
    )


def _plain(assembly: Assembly) -> nn.Module:
    """The initial classifier out of torch's own layers, each with memory of its own."""
    classifier = assembly.local_model.classifier
    head = nn.Linear(*reversed(classifier.head.weight.shape), bias=False)
    net = nn.Sequential(copy.deepcopy(classifier.encoder), head)
    head.weight.data = classifier.head.weight.detach().clone()
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
    return net
