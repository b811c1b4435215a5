"""FFC, the federated closed-form calibration of SphereFed: Eq. 9 on the client, Eq. 10 and 12 on the server.

Statistics are exact integers. Unit features are truncated towards zero to multiples of 2⁻²⁰, so each product of two
features is a multiple of 2⁻⁴⁰ and at most 1. A float64 sum of 8,192 products is exact in any order. V and U are stored
as int64. Therefore sums do not depend on batch size, client order, threads, BLAS or engine; V is the exact Gram matrix
of the truncated features; and a client can be subtracted exactly. Truncation lifts the zero eigenvalues of linearly
dependent features to at most n·l·2⁻⁴⁰ (`noise_floor`); the solve treats eigenvalues up to this bound as zero.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spherefed.calibration.context import Context
from spherefed.calibration.solution import Solution
from spherefed.calibration.statistics import (
    FEATURE_BITS,
    MAX_EXAMPLES,
    Statistics,
    pack_triangle,
    packed_size,
    too_many,
)
from spherefed.errors import CalibrationError, ConfigError
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import eval_mode
from spherefed.tensors import Tensors

__all__ = ["FEATURE_BITS", "MAX_EXAMPLES", "Accumulator", "Ffc", "Statistics", "statistics", "truncated_unit_rows"]

EXACT_ROWS = 2**13
"""The sum of 2¹³ products of at most 2⁴⁰ is at most 2⁵³; float64 represents all integers up to 2⁵³."""
BLOCK_ROWS = 2**8
"""Minimum number of rows in one matrix product, except the last; fewer rows are slow."""
NUM_STRIPES = 8
"""V's upper triangle is computed in this many stripes of rows, which takes 9/16 of the work of the full matrix."""
FLUSH_ROWS = 2**9
"""Rows of V that are converted to int64 at a time."""


def statistics(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Statistics:
    """Measure V and U (SphereFed, Eq. 9) of a model on batches of (inputs, labels).

    The model runs in eval mode; the mode of every submodule is restored afterwards. Features are normalized in float64,
    even if the model does not: without a bias the arg-max does not depend on ‖z‖. Give batches without augmentation.
    """
    if not isinstance(model, Classifier):
        raise CalibrationError(
            f"statistics needs a model of sf.hyperspherical or sf.from_classifier, got a {type(model).__name__}"
        )
    if isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[0], Tensor | np.ndarray):
        raise CalibrationError(
            "batches must be an iterable of (inputs, labels), got one pair; write [(inputs, labels)]"
        )
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    accumulator: Accumulator | None = None
    with eval_mode(model), torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for inputs, labels in batches:
            fits = isinstance(inputs, Tensor) and inputs.dtype != torch.float64
            features = model.raw_features((inputs if fits else _tensor(inputs, model)).to(device))
            if accumulator is None:
                accumulator = Accumulator(features.shape[1], model.num_classes, device)
            accumulator.add(features, (labels if isinstance(labels, Tensor) else _tensor(labels, model)).to(device))
        if accumulator is None:
            if model.head.is_uninitialized:
                raise CalibrationError(
                    "no batch was given and the feature dimension is not known; give a batch, or dim="
                )
            accumulator = Accumulator(model.head.weight.shape[1], model.num_classes, device)
        return accumulator.total()


def _tensor(values: object, model: Classifier) -> Tensor:
    """An array, a list or a float64 tensor as a tensor, its floats of the type of the encoder's own."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise CalibrationError(
            f"batches must be pairs (inputs, labels) of tensors or arrays of numbers, got a {type(values).__name__}; "
            "convert it with torch.as_tensor"
        ) from None
    own = (t.dtype for t in (*model.encoder.parameters(), *model.encoder.buffers()) if t.is_floating_point())
    return tensor.to(next(own, tensor.dtype)) if tensor.is_floating_point() else tensor


class Accumulator:
    """Exact sums over feature rows: rows → float64 products of ≤ 8,192 rows → int64."""

    def __init__(self, dim: int, num_classes: int, device: torch.device) -> None:
        self._num_examples = self._num_zero = 0
        self._rows: list[Tensor] = []
        self._num_rows = self._num_summed = 0
        self._sum_ll = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self._gram_ll = torch.zeros(dim, dim, dtype=torch.int64, device=device)
        # Fewer than 2²³ examples of at most 2²⁰ each: these sums are exact in float64 without conversion to int64.
        self._cross_Cl = torch.zeros(num_classes, dim, dtype=torch.float64, device=device)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add raw features (n, l) with their labels (n,)."""
        if labels.ndim != 1 or labels.is_floating_point():
            raise CalibrationError(
                f"labels must be one whole number per example, got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(features) != len(labels):
            raise CalibrationError(f"{len(features)} feature rows but {len(labels)} labels")
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(self._cross_Cl)):
            raise CalibrationError(
                f"labels must lie in 0..{len(self._cross_Cl) - 1}, got {int(labels.min())}..{int(labels.max())}; "
                "number the classes from 0, or give the model more classes"
            )
        rows, kept = truncated_unit_rows(features)
        self._num_zero += len(features) - len(rows)
        self._num_examples += len(rows)
        if self._num_examples >= MAX_EXAMPLES:
            raise too_many(self._num_examples)
        labels = labels.to(torch.int64)
        self._cross_Cl.index_add_(0, labels if len(rows) == len(labels) else labels[kept], rows)
        for block in torch.split(rows, EXACT_ROWS - BLOCK_ROWS):
            self._rows.append(block)
            self._num_rows += len(block)
            if self._num_rows >= BLOCK_ROWS:
                self._multiply()

    def total(self) -> Statistics:
        """The statistics of all rows added so far."""
        self._multiply()
        self._flush()
        cross_lC = self._cross_Cl.T.to(torch.int64).contiguous()
        return Statistics(self._num_examples, self._num_zero, pack_triangle(self._gram_ll), cross_lC)

    def _multiply(self) -> None:
        if not self._rows:
            return
        if self._num_summed + self._num_rows > EXACT_ROWS:
            self._flush()
        rows = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        dim = rows.shape[1]
        height = max(64, -(-dim // NUM_STRIPES))
        for top in range(0, dim, height):
            self._sum_ll[top : top + height, top:].addmm_(rows[:, top : top + height].T, rows[:, top:])
        self._num_summed += self._num_rows
        self._rows, self._num_rows = [], 0

    def _flush(self) -> None:
        for top in range(0, len(self._gram_ll), FLUSH_ROWS):  # without a copy of the whole matrix
            self._gram_ll[top : top + FLUSH_ROWS] += self._sum_ll[top : top + FLUSH_ROWS].to(torch.int64)
        self._sum_ll.zero_()
        self._num_summed = 0


def truncated_unit_rows(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rows z = h/‖h‖ in float64, in units of 2⁻²⁰ and truncated towards zero; and a mask of the rows that were kept.

    Zero rows have no direction and are dropped. Truncation, unlike rounding, keeps every norm at most 1.
    """
    # A copy, because the operations below are in place; contiguous, because the sum over a row depends on its layout.
    wide = features.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    # Division by the largest entry first avoids overflow and underflow of the squares.
    largest = wide.abs().amax(dim=1, keepdim=True)
    if not bool(largest.isfinite().all()):
        bad = int((~largest.isfinite()).squeeze(1).nonzero()[0])
        raise CalibrationError(f"features of example {bad} of a batch are not finite; the model may have diverged")
    kept = (largest > 0).squeeze(1)
    if not bool(kept.all()):
        wide, largest = wide[kept], largest[kept]
    scaled = wide.div_(largest)
    unit = scaled.div_(torch.linalg.vector_norm(scaled, dim=1, keepdim=True))
    # Conversion to int32 truncates towards zero, like `trunc_`, which takes many times as long.
    return unit.copy_(unit.mul_(2.0**FEATURE_BITS).to(torch.int32)), kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Ffc:
    """Calibration by FFC: one request to every client, then a closed-form solution on the server."""

    kind: ClassVar[str] = "ffc"
    capacity: ClassVar[int] = MAX_EXAMPLES - 1
    """Examples that the sum over clients can hold."""
    ridge: float = 0.0
    """λ of Eq. 12 (that of Eq. 11 times N·C). trace(V) = n, so λ = c·n/l is c times the mean eigenvalue of V."""

    def __post_init__(self) -> None:
        if not (self.ridge >= 0 and isfinite(self.ridge)):
            raise ConfigError(f"calibration.ridge must be finite and not negative, got {self.ridge}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: V and U of its examples."""
        return statistics(model, batches).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; raises CalibrationError for an invalid part."""
        checked = Statistics.from_tensors(part)
        if (checked.num_classes, checked.dim) != context.head.shape:
            raise CalibrationError(
                f"statistics of {checked.dim} features and {checked.num_classes} classes do not fit a head of shape "
                f"{tuple(context.head.shape)}"
            )
        checked.check_gram()
        return checked.tensors() if total is None else (Statistics.from_checked_tensors(total) + checked).tensors()

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return int(part["counts"].sum())

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        num_classes, dim = head.shape
        return 8 * (2 + packed_size(dim) + dim * num_classes)

    def solve(self, total: Tensors, context: Context) -> Solution:
        """On the server, after all replies."""
        return Statistics.from_checked_tensors(total).solve(self.ridge)
