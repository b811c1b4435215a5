"""A user's own calibration: every row of the head becomes the mean feature of its class."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.nn import functional


@dataclass(frozen=True)
class ClassMeans:
    def measure(self, model, batches):
        sums = [functional.one_hot(y, model.num_classes).float().T @ model.features(x) for x, y in batches]
        return {"sums": torch.stack(sums).sum(0).detach()}

    def merge(self, total, part, context):
        return part if total is None else {"sums": total["sums"] + part["sums"]}

    def solve(self, total, context):
        rows = functional.normalize(total["sums"], dim=1)
        return SimpleNamespace(weight=rows, summary=lambda: {"largest": float(rows.abs().max())})
