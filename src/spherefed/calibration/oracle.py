"""The oracle of Table 4 ("sanity check"): the head fine-tuned on the real features of all clients.

Clients send their features and labels unchanged, which is neither private nor cheap. It is a reference for other
calibrations, not a method to use.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.context import Context
from spherefed.calibration.features import labelled_features
from spherefed.calibration.refit import Refit, Refitted, refit
from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier
from spherefed.rng import Purpose, stream
from spherefed.tensors import Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Oracle:
    """Refit the head on the pooled real features; for comparison only."""

    kind: ClassVar[str] = "oracle"
    capacity: ClassVar[int] = 2**31 - 1
    """Examples that the server is prepared to hold."""
    # Unstated in the paper: the learning rate; the paper reports the best of several rates and both losses.
    refit: Refit = field(default_factory=lambda: Refit(lr=0.01))
    """SGD on the pooled features."""

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: the inputs of the head, and the labels."""
        features, labels = labelled_features(model, batches)
        return {"features": features, "labels": labels}

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive: concatenates features and labels."""
        _check(part, context.head)
        return part if total is None else {name: torch.cat([total[name], part[name]]) for name in total}

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return len(part["labels"])

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return 8 * max_examples * (head.shape[1] + 1)

    def solve(self, total: Tensors, context: Context) -> Refitted:
        """On the server, after all replies."""
        order = stream(context.seed, Purpose.REFIT, context.round)
        device = context.head.device
        return refit(context.head, total["features"].to(device), total["labels"].to(device), self.refit, order)


def _check(part: Tensors, head_Cl: Tensor) -> None:
    if part.keys() != {"features", "labels"} or part["labels"].dtype != torch.int64:
        given = {name: str(t.dtype) for name, t in part.items()}
        raise CalibrationError(f"the oracle's moments must be features and int64 labels, got {given}")
    features, labels = part["features"], part["labels"]
    if not features.is_floating_point() or labels.ndim != 1 or features.shape != (len(labels), head_Cl.shape[1]):
        raise CalibrationError(
            f"the oracle's moments do not fit a head of shape {tuple(head_Cl.shape)}: features "
            f"{tuple(features.shape)} in {features.dtype}, labels {tuple(labels.shape)}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(head_Cl):
        raise CalibrationError(
            f"labels must lie in 0..{len(head_Cl) - 1}, got {int(labels.min())}..{int(labels.max())}"
        )
