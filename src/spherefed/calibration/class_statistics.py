"""FFC's V and U together with class counts, which `lda` and `balanced` need; additive and exact.

Upload: FFC's 8·(l(l+1)/2 + l·C + 2) bytes and 8·C for the counts. Unlike FFC alone, it discloses class counts.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from spherefed.calibration.class_sums import check_class_sums
from spherefed.calibration.context import Context
from spherefed.calibration.ffc import Accumulator, Ffc, Statistics
from spherefed.errors import CalibrationError
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import eval_mode
from spherefed.tensors import Tensors, one_thread

COUNTS = "class_counts"


def measure_with_counts(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
    """V, U and n_c; zero feature vectors have no direction and are not counted."""
    head = model.head.weight
    counts_C = torch.zeros(model.num_classes, dtype=torch.int64, device=head.device)
    accumulator = Accumulator(head.shape[1], model.num_classes, head.device)
    with eval_mode(model), torch.inference_mode(), torch.autocast(head.device.type, enabled=False):
        for inputs, labels in batches:
            features, known = model.raw_features(inputs.to(head.device)), labels.to(head.device)
            accumulator.add(features, known)
            counts_C += torch.bincount(known[(features != 0).any(dim=1)], minlength=model.num_classes)
        return {**accumulator.total().tensors(), COUNTS: counts_C}


def merge_with_counts(total: Tensors | None, part: Tensors, context: Context) -> Tensors:
    """Sum of V, U and n_c; raises CalibrationError for an invalid part."""
    counts = part.get(COUNTS)
    if counts is None or counts.dtype != torch.int64 or counts.shape != (len(context.head),):
        raise CalibrationError(f"the statistics need {COUNTS}: one int64 for each of {len(context.head)} classes")
    merged = Ffc().merge(_without_counts(total), _without_counts(part) or {}, context)
    if int(counts.min()) < 0 or int(counts.sum()) != int(part["counts"][0]):
        raise CalibrationError(
            f"class counts must not be negative and add up to {int(part['counts'][0])} examples, "
            f"got {int(counts.min())} and a sum of {int(counts.sum())}"
        )
    check_class_sums(counts, part["cross"].T)
    _check_scatter(Statistics.from_checked_tensors(_without_counts(part) or {}), counts)
    return {**merged, COUNTS: counts if total is None else total[COUNTS] + counts}


def _check_scatter(part: Statistics, counts_C: Tensor) -> None:
    """V ⪰ Σ_c u_c u_cᵀ / n_c: what is left is the scatter within classes, which `lda` inverts."""
    with one_thread():
        means_lC = part.cross() / counts_C.clamp_min(1).double().sqrt()
        scatter_ll = part.gram() - means_lC @ means_lC.T
        rounding = (len(scatter_ll) + len(counts_C) + 8) * 2.0**-50 * part.num_examples
        scatter_ll.diagonal().add_(rounding)
        _, info = torch.linalg.cholesky_ex(scatter_ll)
    if part.num_examples and int(info) != 0:
        raise CalibrationError("V, U and class counts do not fit together: V is less than the scatter of class means")


def split_counts(total: Tensors) -> tuple[Statistics, Tensor]:
    """V and U, and n_c as float64, (C,)."""
    return Statistics.from_tensors(_without_counts(total) or {}), total[COUNTS].double()


def _without_counts(tensors: Tensors | None) -> Tensors | None:
    return None if tensors is None else {name: t for name, t in tensors.items() if name != COUNTS}
