"""The work that every contestant does: data, partition, model and cohorts come from one experiment, made once."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.assembly import Assembly, assemble
from spherefed.data.partition import Dirichlet, Iid
from spherefed.experiment import Data, Experiment, Model
from spherefed.federation import sample
from spherefed.nn.encoders import ConvNet, Mlp
from spherefed.rng import Purpose, stream
from spherefed.schedules import Constant
from spherefed.training import LocalTraining


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
            rounds=65,
            data=Data(name="digits"),
            partition=Dirichlet(alpha=0.5, clients=100, min_size=2),
            model=Model(encoder=Mlp(widths=(64,))),
            local=LocalTraining(lr=0.05, epochs=1, batch_size=32, momentum=0.0, weight_decay=0.0),
            schedule=Constant(),
            cohort=10,
        ),
    )


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


@dataclass(frozen=True, slots=True)
class Material:
    """A workload as plain tensors, for contestants that know nothing of this library."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    parts: list[Tensor]
    cohorts: list[list[int]]
    net: nn.Module
    lr: float
    batch_size: int
    momentum: float

    @staticmethod
    def of(experiment: Experiment) -> "Material":
        assembly = assemble(experiment)
        train, test, local = assembly.dataset.train, assembly.dataset.test, experiment.local
        assert train.indices is None
        assert train.prepare is None
        clients = range(len(assembly.partition.parts))
        cohorts = [
            list(sample(clients, experiment.cohort, stream(experiment.seed, Purpose.COHORT, t)))
            for t in range(experiment.rounds)
        ]
        return Material(
            train.inputs,
            train.labels,
            test.inputs,
            test.labels,
            [torch.from_numpy(part) for part in assembly.partition.parts],
            cohorts,
            _plain(assembly),
            local.lr,
            local.batch_size,
            local.momentum,
        )


def _plain(assembly: Assembly) -> nn.Module:
    """The initial classifier out of torch's own layers."""
    classifier = assembly.bench.classifier
    head = nn.Linear(*reversed(classifier.head.weight.shape), bias=False)
    head.load_state_dict({"weight": classifier.head.weight.detach()})
    return nn.Sequential(classifier.encoder, head)


@torch.no_grad()
def training_loss(net: nn.Module, material: Material) -> float:
    """Of a final model on all training examples: the proof that a contestant did the work."""
    net.eval()
    batches = zip(material.inputs.split(500), material.labels.split(500), strict=True)
    total = sum(float(functional.cross_entropy(net(x), y, reduction="sum")) for x, y in batches)
    return total / len(material.labels)


Rounds = Iterator[None]
"""A contestant's work: it is resumed once per round."""
