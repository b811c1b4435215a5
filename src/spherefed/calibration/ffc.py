"""FFC, the federated closed-form calibration of SphereFed: Eq. 9 on the client, Eq. 10 and 12 on the server.

Statistics are exact integers. Unit features are truncated towards zero to multiples of 2⁻²⁰, so every product of two
is a multiple of 2⁻⁴⁰ and at most 1; a float64 sum of 8,192 of them is exact whatever the order; V and U are kept as
int64. Hence sums do not depend on batch size, client order, threads, BLAS or engine, V is a true Gram matrix (positive
semi-definite, of the right rank), and a client can be taken out again to the bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.context import Context
from spherefed.calibration.packing import diagonal_positions, packed_size, unpacked, upper
from spherefed.calibration.solution import Solution, solve
from spherefed.errors import CalibrationError, ConfigError
from spherefed.nn.classifier import Classifier, eval_mode
from spherefed.tensors import Tensors, one_thread

FEATURE_BITS = 20
"""Features are multiples of 2⁻²⁰."""
EXACT_ROWS = 2**13
"""2¹³ products of at most 2⁴⁰ sum up to at most 2⁵³: the last integer up to which float64 holds them all."""
MAX_EXAMPLES = 2**23
"""n products of at most 2⁴⁰ must stay below 2⁶³, where int64 wraps silently."""
BLOCK_ROWS = 2**8
"""Fewest rows that are multiplied at once, as long as more are coming: enough for a fast product."""
NUM_STRIPES = 8
"""Stripes of rows in which V's upper triangle is computed: 9/16 of the work of the whole matrix."""


@dataclass(frozen=True, eq=False, slots=True)
class Statistics:
    """V = Σ z zᵀ and U = Σ z one_hot(y)ᵀ over unit features z (SphereFed, Eq. 9), as exact integers.

    `a + b` merges two clients, `a - b` forgets one; both are exact.
    """

    num_examples: int
    """Examples counted in V and U."""
    num_zero: int
    """Examples left out because their feature vector was zero and has no direction."""
    packed_gram: Tensor
    """(l(l+1)/2,) int64: the upper triangle of V row by row, in units of 2⁻⁴⁰."""
    packed_cross: Tensor
    """(l, C) int64: U, in units of 2⁻²⁰."""

    @property
    def dim(self) -> int:
        return self.packed_cross.shape[0]

    @property
    def num_classes(self) -> int:
        return self.packed_cross.shape[1]

    def gram(self) -> Tensor:
        """V as float64, (l, l)."""
        return unpacked(self.packed_gram.double() * 2.0 ** (-2 * FEATURE_BITS), self.dim)

    def cross(self) -> Tensor:
        """U as float64, (l, C)."""
        return self.packed_cross.double() * 2.0**-FEATURE_BITS

    def solve(self, ridge: float = 0.0) -> Solution:
        """The globally optimal head (SphereFed, Eq. 10; Eq. 12 with ridge λ)."""
        if self.num_examples == 0:
            zero = f"; all {self.num_zero} feature vectors were zero, the encoder has died" if self.num_zero else ""
            raise CalibrationError(f"no example was measured, so there is no head to solve for{zero}")
        with one_thread():
            return solve(self.gram(), self.cross(), ridge)

    def __add__(self, other: "Statistics") -> "Statistics":
        return self._combined(other, 1)

    def __radd__(self, other: int) -> "Statistics":
        """So that `sum` works, which starts from 0."""
        return self if other == 0 else NotImplemented

    def __sub__(self, other: "Statistics") -> "Statistics":
        return self._combined(other, -1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and (
            (self.num_examples, self.num_zero) == (other.num_examples, other.num_zero)
            and torch.equal(self.packed_gram, other.packed_gram)
            and torch.equal(self.packed_cross, other.packed_cross)
        )

    __hash__ = None  # type: ignore[assignment]

    def _combined(self, other: "Statistics", sign: int) -> "Statistics":
        if (self.dim, self.num_classes) != (other.dim, other.num_classes):
            raise CalibrationError(
                f"statistics of {self.dim} features and {self.num_classes} classes do not fit those of "
                f"{other.dim} and {other.num_classes}"
            )
        num_examples = self.num_examples + sign * other.num_examples
        num_zero = self.num_zero + sign * other.num_zero
        if num_examples < 0 or num_zero < 0:
            raise CalibrationError(
                f"cannot take {other.num_examples} examples out of {self.num_examples}: they were never added"
            )
        _check_count(num_examples)
        return Statistics(
            num_examples,
            num_zero,
            self.packed_gram + sign * other.packed_gram,
            self.packed_cross + sign * other.packed_cross,
        )

    def tensors(self) -> Tensors:
        """For the wire."""
        counts = torch.tensor([self.num_examples, self.num_zero])
        return {"counts": counts, "gram": self.packed_gram, "cross": self.packed_cross}

    @staticmethod
    def from_tensors(tensors: Tensors) -> "Statistics":
        """From the wire, checked: right names, shapes and dtypes, and a trace that n unit vectors can have."""
        if tensors.keys() != {"counts", "gram", "cross"} or any(t.dtype != torch.int64 for t in tensors.values()):
            given = {name: str(t.dtype) for name, t in tensors.items()}
            raise CalibrationError(f"FFC statistics are counts, gram and cross in int64, got {given}")
        counts, gram, cross = tensors["counts"], tensors["gram"], tensors["cross"]
        dim = cross.shape[0] if cross.ndim == 2 else 0
        if counts.shape != (2,) or cross.ndim != 2 or gram.shape != (packed_size(dim),):
            raise CalibrationError(
                f"FFC statistics do not fit together: counts {tuple(counts.shape)}, gram {tuple(gram.shape)}, "
                f"cross {tuple(cross.shape)}"
            )
        total = Statistics(int(counts[0]), int(counts[1]), gram, cross)
        if total.num_examples < 0 or total.num_zero < 0:
            raise CalibrationError(f"FFC statistics count {total.num_examples} examples")
        _check_count(total.num_examples)
        total._check_sizes()
        total._check_trace()
        return total

    def _check_sizes(self) -> None:
        """No entry of V or U exceeds n, so that the sum over clients cannot wrap either."""
        for name, tensor, bits in (("V", self.packed_gram, 2 * FEATURE_BITS), ("U", self.packed_cross, FEATURE_BITS)):
            most = self.num_examples << bits
            if tensor.numel() and not -most <= int(tensor.min()) <= int(tensor.max()) <= most:
                raise CalibrationError(
                    f"an entry of {name} is beyond what {self.num_examples} unit vectors can add up to"
                )

    def _check_trace(self) -> None:
        """Unit norm gives trace(V) = n, less what truncation takes: at most 2√l · 2⁻²⁰ per example."""
        diagonal = self.packed_gram[diagonal_positions(self.dim, self.packed_gram.device)].double()
        trace = float(diagonal.sum()) * 2.0 ** (-2 * FEATURE_BITS)
        slack = 2 * self.dim**0.5 * 2.0**-FEATURE_BITS + 1e-12
        if not self.num_examples * (1 - slack) <= trace <= self.num_examples * (1 + 1e-12) or (diagonal < 0).any():
            raise CalibrationError(f"trace(V) = {trace:.6g} cannot come from {self.num_examples} unit vectors")


def statistics(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Statistics:
    """Measure V and U (SphereFed, Eq. 9) of a model on batches of (inputs, labels).

    Features are put on the unit sphere in float64 whatever the model was trained with (without a bias the arg-max does
    not depend on ‖z‖), in eval mode; give batches without augmentation. Every module's mode is put back afterwards.
    """
    device = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    accumulator: Accumulator | None = None
    with eval_mode(model), torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for inputs, labels in batches:
            features = model.raw_features(inputs.to(device))
            if accumulator is None:
                accumulator = Accumulator(features.shape[1], model.num_classes, device)
            accumulator.add(features, labels.to(device))
        if accumulator is None:
            if model.head.is_open:
                raise CalibrationError("no batch was given and the feature dimension is not known")
            accumulator = Accumulator(model.head.weight.shape[1], model.num_classes, device)
        return accumulator.total()


class Accumulator:
    """Adds feature rows up exactly: rows → float64 products of ≤ 8,192 rows → int64."""

    def __init__(self, dim: int, num_classes: int, device: torch.device) -> None:
        self._num_examples = self._num_zero = 0
        self._rows: list[Tensor] = []
        self._num_rows = self._num_summed = 0
        self._sum_ll = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self._gram_ll = torch.zeros(dim, dim, dtype=torch.int64, device=device)
        # Fewer than 2²³ examples of at most 2²⁰ each: float64 holds these sums without ever being emptied.
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
                f"labels must lie in 0..{len(self._cross_Cl) - 1}, got {int(labels.min())}..{int(labels.max())}"
            )
        rows, kept = truncated_unit_rows(features)
        self._num_zero += len(features) - len(rows)
        self._num_examples += len(rows)
        _check_count(self._num_examples)
        wanted = labels.to(torch.int64)
        self._cross_Cl.index_add_(0, wanted if len(rows) == len(wanted) else wanted[kept], rows)
        for block in torch.split(rows, EXACT_ROWS - BLOCK_ROWS):
            self._rows.append(block)
            self._num_rows += len(block)
            if self._num_rows >= BLOCK_ROWS:
                self._multiply()

    def total(self) -> Statistics:
        """What has been added so far."""
        self._multiply()
        self._flush()
        triangle = upper(len(self._gram_ll), self._gram_ll.device)
        cross_lC = self._cross_Cl.T.to(torch.int64).contiguous()
        return Statistics(self._num_examples, self._num_zero, self._gram_ll[triangle], cross_lC)

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
        self._gram_ll += self._sum_ll.to(torch.int64)
        self._sum_ll.zero_()
        self._num_summed = 0


def truncated_unit_rows(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rows z = h/‖h‖ in float64, truncated towards zero and scaled to whole numbers of 2⁻²⁰; and which rows were kept.

    Zero rows have no direction and are left out. Truncation, unlike rounding, keeps every norm at most 1.
    """
    # A copy, since it is worked on in place; rows one after the other, since sums of a row depend on its layout.
    wide = features.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    # Dividing by the largest entry first keeps the squares of very long or very short rows in range.
    largest = wide.abs().amax(dim=1, keepdim=True)
    if not bool(largest.isfinite().all()):
        bad = int((~largest.isfinite()).squeeze(1).nonzero()[0])
        raise CalibrationError(f"features of example {bad} of a batch are not finite; the model may have diverged")
    kept = (largest > 0).squeeze(1)
    if not bool(kept.all()):
        wide, largest = wide[kept], largest[kept]
    scaled = wide.div_(largest)
    unit = scaled.div_(torch.linalg.vector_norm(scaled, dim=1, keepdim=True))
    # The way through int32 truncates towards zero, as `trunc_` does at many times the price.
    return unit.copy_(unit.mul_(2.0**FEATURE_BITS).to(torch.int32)), kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Ffc:
    """Calibrate by FFC: every client is asked once, the server solves in closed form."""

    kind: ClassVar[str] = "ffc"
    ridge: float = 0.0
    """λ of Eq. 12 (Eq. 11's is this divided by N·C); trace(V) = n, so λ = c·n/l is c times the mean eigenvalue."""

    def __post_init__(self) -> None:
        if not (self.ridge >= 0 and isfinite(self.ridge)):
            raise ConfigError(f"calibration.ridge must be a number and not negative, got {self.ridge}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client."""
        return statistics(model, batches).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive; a part that cannot be true is refused."""
        checked = Statistics.from_tensors(part)
        if (checked.num_classes, checked.dim) != context.head.shape:
            raise CalibrationError(
                f"statistics of {checked.dim} features and {checked.num_classes} classes do not fit a head of shape "
                f"{tuple(context.head.shape)}"
            )
        return checked.tensors() if total is None else (_trusted(total) + checked).tensors()

    def solve(self, total: Tensors, context: Context) -> Solution:
        """On the server, at the end."""
        return _trusted(total).solve(self.ridge)


def _trusted(tensors: Tensors) -> Statistics:
    counts = tensors["counts"]
    return Statistics(int(counts[0]), int(counts[1]), tensors["gram"], tensors["cross"])


def _check_count(num_examples: int) -> None:
    if num_examples >= MAX_EXAMPLES:
        raise CalibrationError(
            f"{num_examples} examples would overflow the exact statistics; fewer than {MAX_EXAMPLES} can be added up"
        )
