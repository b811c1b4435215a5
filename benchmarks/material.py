"""A workload as plain tensors, for contestants that know nothing of this library: needs torch and nothing else."""

import copy
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TEST_BATCH = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What everybody is given: data, partition, who takes part in which round, the initial net, the local training."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    parts: list[Tensor]
    """The examples of each client, as indices."""
    cohorts: list[list[int]]
    """The clients of each round."""
    net: nn.Module
    """Initial, and never trained itself: `fresh` makes copies."""
    num_classes: int
    lr: float
    batch_size: int
    momentum: float
    warm_up: int
    """Rounds at the start that are not timed."""

    def save(self, path: Path) -> None:
        torch.save({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @staticmethod
    def load(path: str | Path) -> "Material":
        """By a contestant, which computes on one thread from here on."""
        torch.set_num_threads(1)
        return Material(**torch.load(path, weights_only=False))

    def fresh(self) -> nn.Module:
        return copy.deepcopy(self.net)

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        return self.inputs[self.parts[number]], self.labels[self.parts[number]]

    @torch.no_grad()
    def num_correct(self, net: nn.Module) -> int:
        """The evaluation that follows every round."""
        net.eval()
        batches = zip(self.test_inputs.split(TEST_BATCH), self.test_labels.split(TEST_BATCH), strict=True)
        return sum(int((net(x).argmax(1) == y).sum()) for x, y in batches)

    @torch.no_grad()
    def training_loss(self, net: nn.Module) -> float:
        """Of a final model on all training examples: the proof that a contestant did the work."""
        net.eval()
        batches = zip(self.inputs.split(TEST_BATCH), self.labels.split(TEST_BATCH), strict=True)
        return sum(float(functional.cross_entropy(net(x), y, reduction="sum")) for x, y in batches) / len(self.labels)
