"""Nearest class mean (FedNCM, Legate et al. 2023): every row of the head is the direction of a class mean.

    w_c = μ_c / ‖μ_c‖,   μ_c = Σ_k U_kc / n_c

Upload: 8·c·(l + 2) bytes for a client with c classes; it discloses class counts and class means.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.class_sums import ClassHead, ClassSums, check_total, class_sums, unit_rows_or_zero
from spherefed.calibration.context import Context
from spherefed.calibration.ffc import FEATURE_BITS, Ffc
from spherefed.errors import NothingMeasuredError
from spherefed.nn.classifier import Classifier
from spherefed.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Ncm:
    """The head of class means on the unit sphere; a class that nobody has gets a row of zeros."""

    kind: ClassVar[str] = "ncm"
    capacity: ClassVar[int] = Ffc.capacity

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: counts and sums of its classes."""
        return class_sums(model, batches).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; raises CalibrationError for an invalid part."""
        checked = ClassSums.from_tensors(part, context.head)
        num_classes, dim = context.head.shape
        counts = torch.zeros(num_classes, dtype=torch.int64) if total is None else total["counts"].clone()
        sums = torch.zeros(num_classes, dim, dtype=torch.int64) if total is None else total["sums"].clone()
        counts.index_add_(0, checked.classes.cpu(), checked.counts.cpu())
        sums.index_add_(0, checked.classes.cpu(), checked.sums.cpu())
        check_total(int(counts.sum()))
        return {"counts": counts, "sums": sums}

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return int(part["counts"].sum())

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        return 8 * head.shape[0] * (2 + head.shape[1])

    def solve(self, total: Tensors, context: Context) -> ClassHead:
        """On the server, after all replies."""
        num_examples = int(total["counts"].sum())
        if not num_examples:
            raise NothingMeasuredError("no example was measured, so the head cannot be computed")
        # The direction of the sum is the direction of the mean.
        weight_Cl = unit_rows_or_zero(total["sums"].double() * 2.0**-FEATURE_BITS)
        return ClassHead(weight_Cl, {"num_examples": num_examples, "classes": int((total["counts"] > 0).sum())})
