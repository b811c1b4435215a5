"""CCVR (Luo et al. 2021): clients send class moments; the server draws virtual features and refits the head on them.

Moments are the sums n, Σz and Σzzᵀ of each class that a client has, in float64. They are additive: clients are merged
as they arrive, pooling is exact, and a client with one example of a class needs no special case. They are less private
than sums over all examples of a client: with n = 1 they are the features of that example.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.context import Context, SummaryValue
from spherefed.calibration.features import labelled_features
from spherefed.calibration.refit import Refit, Refitted, refit
from spherefed.calibration.statistics import diagonal_positions, pack_triangle, packed_size, unpack_triangle
from spherefed.errors import CalibrationError, ConfigError, NothingMeasuredError
from spherefed.nn.classifier import Classifier
from spherefed.rng import Purpose, stream
from spherefed.tensors import Tensors, one_thread

MAX_EXAMPLES = 2**53
"""Counts are used in float64 arithmetic, which is exact for integers up to 2⁵³."""
SMALLEST_TRACE = 1e-250
"""Below this, products of features underflow; such moments are zero for every purpose."""


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """n, Σz and Σzzᵀ for each class that occurs; `a + b` merges two clients."""

    classes: Tensor
    """(c,) int64: the classes, ascending."""
    counts: Tensor
    """(c,) int64: n, at least 1."""
    sums: Tensor
    """(c, l) float64: Σz."""
    products: Tensor
    """(c, l(l+1)/2) float64: the upper triangle of Σzzᵀ, row by row."""
    num_signed: int
    """Number of examples with a negative feature; 0 if all features are non-negative."""

    @property
    def dim(self) -> int:
        return self.sums.shape[1]

    def mean(self, position: int) -> Tensor:
        """μ_c = Σz / n of the class at this position, (l,)."""
        return self.sums[position] / self.counts[position]

    def covariance(self, position: int) -> Tensor:
        """Unbiased covariance Σ_c = (Σzzᵀ − n μ_c μ_cᵀ) / (n − 1), (l, l); zero if n = 1.

        Equal to the pooled means and covariances of clients in Luo et al.
        """
        n = int(self.counts[position])
        if n == 1:
            return torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.sums.device)
        mean = self.mean(position)
        return (unpack_triangle(self.products[position], self.dim) - n * torch.outer(mean, mean)) / (n - 1)

    def __add__(self, other: "Moments") -> "Moments":
        classes = torch.unique(torch.cat([self.classes, other.classes]))
        counts = self.counts.new_zeros(len(classes))
        sums = self.sums.new_zeros(len(classes), self.dim)
        products = self.products.new_zeros(len(classes), self.products.shape[1])
        for part in (self, other):
            rows = torch.searchsorted(classes, part.classes)
            counts.index_add_(0, rows, part.counts)
            sums.index_add_(0, rows, part.sums)
            products.index_add_(0, rows, part.products)
        return Moments(classes, counts, sums, products, self.num_signed + other.num_signed)

    def tensors(self) -> Tensors:
        """As tensors, for a message."""
        signed = torch.tensor([self.num_signed])
        return {
            "classes": self.classes,
            "counts": self.counts,
            "sums": self.sums,
            "products": self.products,
            "num_signed": signed,
        }

    @staticmethod
    def from_tensors(tensors: Tensors, head_Cl: Tensor) -> "Moments":
        """From a message. Checks names, shapes, dtypes, the classes of this head, and that the sums are possible."""
        _check_types(tensors, head_Cl)
        moments = _from_checked_tensors(tensors)
        moments._check_counts(len(head_Cl))
        moments._check_sums()
        return moments

    def _check_counts(self, num_classes: int) -> None:
        classes, counts = self.classes, self.counts
        if len(classes) and not (int(classes.min()) >= 0 and int(classes.max()) < num_classes):
            raise CalibrationError(
                f"classes of CCVR moments must lie in 0..{num_classes - 1}, "
                f"got {int(classes.min())}..{int(classes.max())}"
            )
        if (classes.diff() <= 0).any():
            raise CalibrationError("CCVR moments must list their classes in ascending order, each once")
        if (counts < 1).any() or (counts >= MAX_EXAMPLES // num_classes).any():
            raise CalibrationError(
                f"counts of CCVR moments must lie in 1..{MAX_EXAMPLES // num_classes - 1}, "
                f"got {int(counts.min())}..{int(counts.max())}"
            )
        if not 0 <= self.num_signed <= int(counts.sum()):
            raise CalibrationError(
                f"num_signed of CCVR moments must lie in 0..{int(counts.sum())}, got {self.num_signed}"
            )

    def _check_sums(self) -> None:
        """Necessary conditions for sums over real vectors; without negative features, no sum is negative.

        (Σz_i)² ≤ n Σz_i²,  |Σz_i z_j| ≤ max_i Σz_i²  and, for each class,  Σzzᵀ ⪰ (Σz)(Σz)ᵀ / n.
        """
        squares = self.products[:, diagonal_positions(self.dim, self.products.device)]
        bound = squares * self.counts[:, None] * (1 + 1e-9)
        if not bool((self.sums.square() <= bound).all()):
            raise CalibrationError("CCVR moments are not sums over examples: (Σz)² exceeds n Σz²")
        if not bool((self.products.abs().amax(dim=1) <= squares.amax(dim=1) * (1 + 1e-9)).all()):
            raise CalibrationError("CCVR moments are not sums over examples: a product exceeds every square")
        if not self.num_signed and (bool((self.sums < 0).any()) or bool((self.products < 0).any())):
            raise CalibrationError("CCVR moments have negative sums, but num_signed is 0")
        with one_thread():
            for packed, sum_l, n in zip(self.products, self.sums, self.counts.tolist(), strict=True):
                _check_second_moment(unpack_triangle(packed, self.dim), sum_l, n)


def _check_second_moment(product_ll: Tensor, sum_l: Tensor, num_examples: int) -> None:
    """Σzzᵀ ⪰ (Σz)(Σz)ᵀ / n, up to the rounding of float64 sums over n examples; raises CalibrationError.

    A sum of n products has an error of at most n·2⁻⁵³·tr(Σzzᵀ) in norm, Cholesky of (l + 1)·2⁻⁵³·tr(Σzzᵀ).
    """
    trace = float(product_ll.trace())
    if trace < SMALLEST_TRACE:
        return
    tolerance = (num_examples + len(sum_l) + 8) * 2.0**-51
    scaled_ll = (product_ll - torch.outer(sum_l, sum_l / num_examples)) / trace
    scaled_ll.diagonal().add_(tolerance)
    _, info = torch.linalg.cholesky_ex(scaled_ll)
    if int(info) != 0:
        raise CalibrationError("CCVR moments are not sums over examples: Σzzᵀ is less than n times the squared mean")


def moments(features: Tensor, labels: Tensor) -> Moments:
    """Class moments of features (n, l) with labels (n,)."""
    classes, counts = torch.unique(labels, return_counts=True)
    dim = features.shape[1]
    sums = torch.zeros(len(classes), dim, dtype=torch.float64, device=features.device)
    products = torch.zeros(len(classes), packed_size(dim), dtype=torch.float64, device=features.device)
    for position, number in enumerate(classes.tolist()):
        rows = features[labels == number].double()
        sums[position] = rows.sum(dim=0)
        products[position] = pack_triangle(rows.T @ rows)
    num_signed = int((features < 0).any(dim=1).sum())
    return Moments(classes, counts, sums, products, num_signed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ccvr:
    """Calibration by CCVR: the server draws virtual features from N(μ_c, Σ_c) and refits the head on them."""

    kind: ClassVar[str] = "ccvr"
    capacity: ClassVar[int] = MAX_EXAMPLES - 1
    """Examples that the sum over clients can hold."""
    num_virtual: int = 500
    """M_c, the number of virtual features for each class that occurs (Table 16; 1000 for TinyImageNet)."""
    tukey: float = 0.5
    """Exponent of Tukey's power transform of the virtual features; 1 means no transform."""
    refit: Refit = field(default_factory=lambda: Refit(lr=1e-5))
    """The learning rate is that of Table 16."""

    def __post_init__(self) -> None:
        if self.num_virtual < 1:
            raise ConfigError(f"calibration.num_virtual must be at least 1, got {self.num_virtual}")
        if not 0 < self.tukey <= 1:
            raise ConfigError(f"calibration.tukey must be in (0, 1], got {self.tukey}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: class moments of the inputs of the head, which have unit norm only if the model normalizes."""
        return moments(*labelled_features(model, batches)).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive in ascending client id; raises CalibrationError for an invalid part."""
        checked = Moments.from_tensors(part, context.head)
        return checked.tensors() if total is None else (_from_checked_tensors(total) + checked).tensors()

    def num_examples(self, part: Tensors) -> int:
        """Examples that these moments claim to be of."""
        return int(part["counts"].sum())

    def max_bytes(self, head: Tensor, max_examples: int) -> int:
        """Most bytes of moments for a head of this shape."""
        num_classes, dim = head.shape
        return 8 * (1 + num_classes * (2 + dim + packed_size(dim)))

    def solve(self, total: Tensors, context: Context) -> "CcvrSolution":
        """On the server, after all replies."""
        pooled = _from_checked_tensors(total)
        if not len(pooled.classes):
            raise NothingMeasuredError("no example was measured, so the head cannot be refitted")
        # Unstated in the paper: how to transform negative features, which have no real root. The transform is only
        # applied if every feature of every client is non-negative.
        tukey = 1.0 if pooled.num_signed else self.tukey
        head = context.head
        features = torch.empty(len(pooled.classes) * self.num_virtual, pooled.dim, dtype=head.dtype, device=head.device)
        lowest_eigenvalue = 0.0
        with one_thread():
            for position, number in enumerate(pooled.classes.tolist()):
                mean_l, covariance_ll = pooled.mean(position), pooled.covariance(position)
                mean_square = float(mean_l @ mean_l + covariance_ll.trace())
                root_ll, lowest = _symmetric_root(covariance_ll, mean_square)
                lowest_eigenvalue = min(lowest_eigenvalue, lowest)
                rng = stream(context.seed, Purpose.VIRTUAL, context.round, number)
                noise = torch.from_numpy(rng.standard_normal((self.num_virtual, pooled.dim))).to(root_ll.device)
                samples = _transformed(mean_l + noise @ root_ll, tukey)
                features[position * self.num_virtual : (position + 1) * self.num_virtual] = samples
        labels = pooled.classes.repeat_interleave(self.num_virtual).to(head.device)
        order = stream(context.seed, Purpose.REFIT, context.round)
        return CcvrSolution(refit(head, features, labels, self.refit, order), len(labels), tukey, lowest_eigenvalue)


@dataclass(frozen=True, eq=False, slots=True)
class CcvrSolution:
    """A head refitted on virtual features."""

    refitted: Refitted
    num_virtual: int
    """Number of virtual features of all classes."""
    tukey: float
    """The exponent that was used: 1 if some feature was negative."""
    lowest_eigenvalue: float
    """The most negative eigenvalue of all covariances, divided by E‖z‖². Negative eigenvalues are set to zero."""

    @property
    def weight(self) -> Tensor:
        return self.refitted.weight

    def summary(self) -> dict[str, SummaryValue]:
        """How the head was computed, without its weight."""
        own: dict[str, SummaryValue] = {
            "num_virtual": self.num_virtual,
            "tukey": self.tukey,
            "lowest_eigenvalue": self.lowest_eigenvalue,
        }
        return own | self.refitted.summary()


def _symmetric_root(covariance_ll: Tensor, mean_square: float) -> tuple[Tensor, float]:
    """The symmetric square root of the covariance, and its lowest eigenvalue divided by `mean_square`, E‖z‖².

    Eigenvalues below l·2⁻⁵² · E‖z‖², including negative ones, are rounding errors and are set to zero. The symmetric
    root is unique; Cholesky fails for the singular covariances of classes with n ≤ l.
    """
    if not bool(covariance_ll.any()):
        return covariance_ll, 0.0
    values_l, vectors_ll = torch.linalg.eigh(covariance_ll)
    floor = len(values_l) * 2.0**-52 * mean_square
    keep = values_l > floor
    basis_lr = vectors_ll[:, keep]
    return (basis_lr * values_l[keep].sqrt()) @ basis_lr.T, float(values_l[0]) / mean_square


def _transformed(samples: Tensor, tukey: float) -> Tensor:
    """Tukey's ladder of powers, z^β. Negative samples of the Gaussian, which real features cannot have, become 0."""
    # Unstated in the paper: whether real features are transformed too. Table 1 lists "Sampling & Tukey" on the server,
    # so only virtual features are transformed; the refitted head is applied to untransformed features.
    return samples if tukey == 1.0 else samples.clamp_min(0).pow(tukey)


def _check_types(tensors: Tensors, head_Cl: Tensor) -> None:
    int64, float64 = torch.int64, torch.float64
    expected = {"classes": int64, "counts": int64, "sums": float64, "products": float64, "num_signed": int64}
    if {name: t.dtype for name, t in tensors.items()} != expected:
        given = {name: str(t.dtype) for name, t in tensors.items()}
        raise CalibrationError(
            f"CCVR moments must be classes, counts and num_signed in int64, sums and products in float64; got {given}"
        )
    num, dim = len(tensors["classes"].reshape(-1)), head_Cl.shape[1]
    shapes = {"classes": (num,), "counts": (num,), "sums": (num, dim), "products": (num, packed_size(dim))}
    for name, shape in (shapes | {"num_signed": (1,)}).items():
        if tensors[name].shape != shape:
            raise CalibrationError(f"CCVR moments: {name} has shape {tuple(tensors[name].shape)}, expected {shape}")


def _from_checked_tensors(tensors: Tensors) -> Moments:
    return Moments(
        classes=tensors["classes"],
        counts=tensors["counts"],
        sums=tensors["sums"],
        products=tensors["products"],
        num_signed=int(tensors["num_signed"][0]),
    )
