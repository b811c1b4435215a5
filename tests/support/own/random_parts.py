"""Components of a user that draw from torch's generator, and leave the seed to the package."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from spherefed.nn.heads import ClassifierHead


@dataclass(frozen=True)
class RandomHead:
    def build(self, num_classes, dim, seed):
        return ClassifierHead(nn.init.orthogonal_(torch.empty(num_classes, dim)), learned=False)


@dataclass(frozen=True)
class NoisyLoss:
    def __call__(self, scores, labels):
        return functional.cross_entropy(scores + 0.1 * torch.randn_like(scores), labels)


@dataclass(frozen=True)
class NoisyMeans:
    def measure(self, model, batches):
        sums = [functional.one_hot(y, model.num_classes).float().T @ model.features(x) for x, y in batches]
        return {"sums": (torch.stack(sums).sum(0) + torch.randn_like(sums[0])).detach()}

    def merge(self, total, part, context):
        return part if total is None else {"sums": total["sums"] + part["sums"]}

    def solve(self, total, context):
        return SimpleNamespace(weight=functional.normalize(total["sums"], dim=1), summary=dict)


@dataclass(frozen=True)
class NoisySolve(NoisyMeans):
    def solve(self, total, context):
        noisy = total["sums"] + torch.randn_like(total["sums"])
        return SimpleNamespace(weight=functional.normalize(noisy, dim=1), summary=dict)


@dataclass(frozen=True)
class NoisyStep:
    def step(self, delta, state):
        return {name: d + 0.01 * torch.randn_like(d) for name, d in delta.items()}, {}


@dataclass(frozen=True)
class NoisyTuning:
    def apply(self, context, received):
        context.set_head(torch.randn_like(context.local_model.classifier.head.weight))
