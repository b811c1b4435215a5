"""Class counts and class sums of unit features: what `ncm` and `fedcof` measure, and what `lda` and `balanced` add.

A client sends n_c and Σz for each class that it has, as exact integers (features are multiples of 2⁻²⁰, as in FFC).
This discloses the client's class counts. With n_c = 1 the sum is the feature vector of that example: `min_samples`
limits the examples of a client, not of a class.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spherefed.calibration.context import SummaryValue
from spherefed.calibration.ffc import FEATURE_BITS, MAX_EXAMPLES, truncated_unit_rows
from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import eval_mode
from spherefed.tensors import Tensors


@dataclass(frozen=True, eq=False, slots=True)
class ClassHead:
    """A head computed from class statistics."""

    weight: Tensor
    """(C, l) float64."""
    details: Mapping[str, SummaryValue] = field(default_factory=dict)

    def summary(self) -> Mapping[str, SummaryValue]:
        """How the head was computed, without its weight."""
        return self.details


@dataclass(frozen=True, eq=False, slots=True)
class ClassSums:
    """n_c and Σz for each class that occurs."""

    classes: Tensor
    """(c,) int64: ascending if it comes from one client."""
    counts: Tensor
    """(c,) int64: n_c, at least 1."""
    sums: Tensor
    """(c, l) int64: Σz of unit features, in units of 2⁻²⁰."""

    def tensors(self) -> Tensors:
        """As tensors, for a message."""
        return {"classes": self.classes, "counts": self.counts, "sums": self.sums}

    def values(self) -> Tensor:
        """(c, l) float64: Σz."""
        return self.sums.double() * 2.0**-FEATURE_BITS

    @staticmethod
    def from_tensors(tensors: Tensors, head_Cl: Tensor) -> "ClassSums":
        """From a message of one client. Checks names, shapes, dtypes, classes, and that the sums are possible."""
        if tensors.keys() != {"classes", "counts", "sums"} or any(t.dtype != torch.int64 for t in tensors.values()):
            given = {name: str(t.dtype) for name, t in tensors.items()}
            raise CalibrationError(f"class sums must be classes, counts and sums in int64, got {given}")
        classes, counts, sums = tensors["classes"], tensors["counts"], tensors["sums"]
        (num_classes, dim), num = head_Cl.shape, classes.numel()
        if classes.shape != (num,) or counts.shape != (num,) or sums.shape != (num, dim):
            raise CalibrationError(
                f"class sums do not fit {dim} features: classes {tuple(classes.shape)}, counts {tuple(counts.shape)}, "
                f"sums {tuple(sums.shape)}"
            )
        if num and (int(classes.min()) < 0 or int(classes.max()) >= num_classes or bool((classes.diff() <= 0).any())):
            raise CalibrationError(f"classes of class sums must ascend within 0..{num_classes - 1}, each once")
        if num and int(counts.min()) < 1:
            raise CalibrationError(f"counts of class sums must be at least 1, got {int(counts.min())}")
        check_class_sums(counts, sums)
        return ClassSums(classes, counts, sums)


def class_sums(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> ClassSums:
    """Measure n_c and Σz of unit features; zero feature vectors have no direction and are not counted."""
    device = model.head.weight.device
    dim = model.head.weight.shape[1]
    counts_C = torch.zeros(model.num_classes, dtype=torch.int64, device=device)
    # Fewer than 2²³ examples of at most 2²⁰ each: these sums are exact in float64.
    sums_Cl = torch.zeros(model.num_classes, dim, dtype=torch.float64, device=device)
    with eval_mode(model), torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for inputs, labels in batches:
            rows, kept = truncated_unit_rows(model.raw_features(inputs.to(device)))
            known = labels.to(device)[kept]
            counts_C += torch.bincount(known, minlength=model.num_classes)
            sums_Cl.index_add_(0, known, rows)
    check_total(int(counts_C.sum()))
    (classes,) = counts_C.nonzero(as_tuple=True)
    return ClassSums(classes, counts_C[classes], sums_Cl[classes].to(torch.int64))


def check_class_sums(counts: Tensor, sums: Tensor) -> None:
    """Necessary conditions for sums of n_c unit vectors: ‖Σz‖ ≤ n_c, and a total that cannot overflow."""
    if counts.numel() and int(counts.max()) >= MAX_EXAMPLES:
        raise CalibrationError(f"a class count of {int(counts.max())} is too large, limit {MAX_EXAMPLES - 1}")
    check_total(int(counts.sum()))
    norms = torch.linalg.vector_norm(sums.double(), dim=1) * 2.0**-FEATURE_BITS
    if bool((norms > counts * (1 + 1e-9)).any()):
        worst = int((norms - counts).argmax())
        raise CalibrationError(f"a sum of {int(counts[worst])} unit vectors cannot have norm {float(norms[worst]):.6g}")


def check_total(num_examples: int) -> None:
    """Fewer than 2²³ examples, as in FFC."""
    if num_examples >= MAX_EXAMPLES:
        raise CalibrationError(
            f"{num_examples} examples would overflow the exact statistics; fewer than {MAX_EXAMPLES} are allowed"
        )


def unit_rows_or_zero(rows: Tensor) -> Tensor:
    """Rows scaled to unit norm; zero rows stay zero."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norms > 0, norms, 1.0)
