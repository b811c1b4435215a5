"""Class-balanced ridge: FFC's scores divided by the class priors.

    W = D (V + λI)⁻¹ U,   D = diag(n / (C · n_c))

A least-squares score on one-hot targets estimates P(c | z) (Ruck et al. 1990). Division by the prior n_c / n gives the
decision for equally frequent classes (Saerens et al. 2002). It helps where the training data have rare classes and all
classes matter equally. It needs V, U and n_c only, where weights on examples would need V of every class.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.class_statistics import measure_with_counts, merge_with_counts, split_counts
from spherefed.calibration.class_sums import ClassHead
from spherefed.calibration.context import Context
from spherefed.calibration.ffc import Ffc
from spherefed.calibration.gcv import choose_ridge
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors


@dataclass(frozen=True, slots=True)
class BalancedFfc:
    """FFC with λ chosen by generalized cross-validation, and every class equally likely."""

    kind: ClassVar[str] = "ffc-balanced"
    capacity: ClassVar[int] = Ffc.capacity

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: V, U and class counts."""
        return measure_with_counts(model, batches)

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; raises CalibrationError for an invalid part."""
        return merge_with_counts(total, part, context)

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return Ffc().num_examples(part)

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return Ffc().max_bytes(head, max_examples) + 8 * head.shape[0]

    def solve(self, total: Tensors, context: Context) -> ClassHead:
        """On the server, after all replies."""
        statistics, counts_C = split_counts(total)
        choice = choose_ridge(statistics)
        solution = statistics.solve(choice.ridge)
        # The row of a class that nobody has is zero already.
        scale_C = statistics.num_examples / (len(counts_C) * counts_C.clamp_min(1.0))
        details = {**solution.summary(), "smallest_class": int(torch.min(counts_C))}
        return ClassHead(scale_C[:, None] * solution.weight, details)
