"""CCVR (Luo et al. 2021): class moments from the clients, virtual features from Gaussians, a head refitted on them.

Moments are raw sums (n, Σz, Σzzᵀ) of only the classes a client holds, in float64. They are additive, so clients are
merged as they arrive, pooling is exact and a client with a single example of a class needs no special case. They are
not private in the way sums over a whole client are: with n = 1 they are that example's features.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from spherefed.calibration.context import Context, Fact
from spherefed.calibration.features import labelled_features
from spherefed.calibration.packing import diagonal_positions, packed_size, unpacked, upper
from spherefed.calibration.refit import Refit, Refitted, refit
from spherefed.errors import CalibrationError, ConfigError
from spherefed.nn.classifier import Classifier
from spherefed.rng import Purpose, stream
from spherefed.tensors import Tensors, one_thread

MAX_EXAMPLES = 2**53
"""Counts enter float64 arithmetic."""


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """n, Σz and Σzzᵀ per class, of the classes that occur; `a + b` merges two clients."""

    classes: Tensor
    """(c,) int64: which classes, ascending."""
    counts: Tensor
    """(c,) int64: n, at least 1."""
    sums: Tensor
    """(c, l) float64: Σz."""
    products: Tensor
    """(c, l(l+1)/2) float64: the upper triangle of Σzzᵀ, row by row."""
    num_signed: int
    """Examples with a negative feature; 0 means that all features of the model are non-negative."""

    @property
    def dim(self) -> int:
        return self.sums.shape[1]

    def mean(self, position: int) -> Tensor:
        """μ_c = Σz / n of the class at this position, (l,)."""
        return self.sums[position] / self.counts[position]

    def covariance(self, position: int) -> Tensor:
        """Unbiased: Σ_c = (Σzzᵀ − n μ_c μ_cᵀ) / (n − 1), (l, l); zero if n = 1.

        The same number as Luo et al.'s pooling of the clients' own means and covariances.
        """
        n = int(self.counts[position])
        if n == 1:
            return torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.sums.device)
        mean = self.mean(position)
        return (unpacked(self.products[position], self.dim) - n * torch.outer(mean, mean)) / (n - 1)

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
        """For the wire."""
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
        """From the wire, checked: names, shapes, dtypes, classes of this head, and sums that examples can have."""
        _check_form(tensors, head_Cl)
        moments = _trusted(tensors)
        moments._check_counts(len(head_Cl))
        moments._check_sums()
        return moments

    def _check_counts(self, num_classes: int) -> None:
        classes, counts = self.classes, self.counts
        if len(classes) and not (int(classes[0]) >= 0 and int(classes[-1]) < num_classes):
            raise CalibrationError(f"CCVR moments name class {int(classes.max())} of {num_classes} classes")
        if (classes.diff() <= 0).any():
            raise CalibrationError("CCVR moments must name their classes in ascending order, each once")
        if (counts < 1).any() or (counts >= MAX_EXAMPLES // num_classes).any():
            raise CalibrationError(f"CCVR moments count between {int(counts.min())} and {int(counts.max())} examples")
        if not 0 <= self.num_signed <= int(counts.sum()):
            raise CalibrationError(f"CCVR moments claim {self.num_signed} signed of {int(counts.sum())} examples")

    def _check_sums(self) -> None:
        """Necessary for a set of real vectors, and cheap; none negative if no feature is.

        (Σz_i)² ≤ n Σz_i², and |Σz_i z_j| ≤ max_i Σz_i². What else is wrong with a covariance, the repair mends.
        """
        squares = self.products[:, diagonal_positions(self.dim, self.products.device)]
        allowed = squares * self.counts[:, None] * (1 + 1e-9)
        if not bool((self.sums.square() <= allowed).all()):
            raise CalibrationError("CCVR moments cannot come from examples: (Σz)² exceeds n Σz²")
        if not bool((self.products.abs().amax(dim=1) <= squares.amax(dim=1) * (1 + 1e-9)).all()):
            raise CalibrationError("CCVR moments cannot come from examples: a product exceeds every square")
        if not self.num_signed and (bool((self.sums < 0).any()) or bool((self.products < 0).any())):
            raise CalibrationError("CCVR moments are negative but claim that no feature is")


def moments(features: Tensor, labels: Tensor) -> Moments:
    """Class moments of features (n, l) with labels (n,)."""
    classes, counts = torch.unique(labels, return_counts=True)
    dim, triangle = features.shape[1], upper(features.shape[1], features.device)
    sums = torch.zeros(len(classes), dim, dtype=torch.float64, device=features.device)
    products = torch.zeros(len(classes), packed_size(dim), dtype=torch.float64, device=features.device)
    for position, number in enumerate(classes.tolist()):
        rows = features[labels == number].double()
        sums[position] = rows.sum(dim=0)
        products[position] = (rows.T @ rows)[triangle]
    num_signed = int((features < 0).any(dim=1).sum())
    return Moments(classes, counts, sums, products, num_signed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ccvr:
    """Calibrate by CCVR: virtual features from N(μ_c, Σ_c) on the server, the head refitted on them."""

    kind: ClassVar[str] = "ccvr"
    num_virtual: int = 500
    """M_c, virtual features per class that occurs (Table 16; 1000 for TinyImageNet)."""
    tukey: float = 0.5
    """Exponent of Tukey's power transform of the virtual features; 1 leaves them as they are drawn."""
    refit: Refit = field(default_factory=lambda: Refit(lr=1e-5))
    """Table 16's learning rate."""

    def __post_init__(self) -> None:
        if self.num_virtual < 1:
            raise ConfigError(f"calibration.num_virtual must be at least 1, got {self.num_virtual}")
        if not 0 < self.tukey <= 1:
            raise ConfigError(f"calibration.tukey must be in (0, 1], got {self.tukey}")

    def measure(self, model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
        """On the client: moments of what the head sees, on the unit sphere only if the model puts it there."""
        return moments(*labelled_features(model, batches)).tensors()

    def merge(self, total: Tensors | None, part: Tensors, context: Context) -> Tensors:
        """On the server, as replies arrive in ascending client id; a part that cannot be true is refused."""
        checked = Moments.from_tensors(part, context.head)
        return checked.tensors() if total is None else (_trusted(total) + checked).tensors()

    def solve(self, total: Tensors, context: Context) -> "CcvrSolution":
        """On the server, at the end."""
        pooled = _trusted(total)
        if not len(pooled.classes):
            raise CalibrationError("no example was measured, so there is no head to refit")
        # Unstated in the paper: what becomes of signed features, which have no real root. The transform is left out
        # unless every feature that any client measured is non-negative.
        tukey = 1.0 if pooled.num_signed else self.tukey
        head = context.head
        features = torch.empty(len(pooled.classes) * self.num_virtual, pooled.dim, dtype=head.dtype, device=head.device)
        worst = 0.0
        with one_thread():
            for position, number in enumerate(pooled.classes.tolist()):
                mean_l, covariance_ll = pooled.mean(position), pooled.covariance(position)
                size = float(mean_l @ mean_l + covariance_ll.trace())
                root_ll, lowest = _root(covariance_ll, size)
                worst = min(worst, lowest)
                rng = stream(context.seed, Purpose.VIRTUAL, context.round, number)
                noise = torch.from_numpy(rng.standard_normal((self.num_virtual, pooled.dim))).to(root_ll.device)
                drawn = _transformed(mean_l + noise @ root_ll, tukey)
                features[position * self.num_virtual : (position + 1) * self.num_virtual] = drawn
        labels = pooled.classes.repeat_interleave(self.num_virtual).to(head.device)
        order = stream(context.seed, Purpose.REFIT, context.round)
        return CcvrSolution(refit(head, features, labels, self.refit, order), len(labels), tukey, worst)


@dataclass(frozen=True, eq=False, slots=True)
class CcvrSolution:
    """A head refitted on virtual features."""

    refitted: Refitted
    num_virtual: int
    """Of all classes together."""
    tukey: float
    """The exponent that was applied: 1 if some feature was negative."""
    lowest_eigenvalue: float
    """The most negative eigenvalue of a covariance that rounding left and the repair set to zero, over E‖z‖²."""

    @property
    def weight(self) -> Tensor:
        return self.refitted.weight

    def facts(self) -> dict[str, Fact]:
        """Everything but the weight."""
        own: dict[str, Fact] = {
            "num_virtual": self.num_virtual,
            "tukey": self.tukey,
            "lowest_eigenvalue": self.lowest_eigenvalue,
        }
        return own | self.refitted.facts()


def _root(covariance_ll: Tensor, size: float) -> tuple[Tensor, float]:
    """The symmetric root of the repaired covariance, and the lowest eigenvalue before the repair over `size`, E‖z‖².

    Eigenvalues below l·2⁻⁵² · E‖z‖², negative ones among them, are what rounding leaves of zero, and become zero. The
    symmetric root is unique; Cholesky's would fail on the singular covariances of classes with n ≤ l.
    """
    if not bool(covariance_ll.any()):
        return covariance_ll, 0.0
    values_l, vectors_ll = torch.linalg.eigh(covariance_ll)
    floor = len(values_l) * 2.0**-52 * size
    keep = values_l > floor
    basis_lr = vectors_ll[:, keep]
    return (basis_lr * values_l[keep].sqrt()) @ basis_lr.T, float(values_l[0]) / size


def _transformed(drawn: Tensor, tukey: float) -> Tensor:
    """Tukey's ladder of powers, z^β; a Gaussian's negative values, which no real feature has, become 0."""
    # Unstated in the paper: whether the model's own features are transformed too. Table 1 lists "Sampling & Tukey" on
    # the server, so only the virtual ones are; the refitted head is used on features as the model gives them.
    return drawn if tukey == 1.0 else drawn.clamp_min(0).pow(tukey)


def _check_form(tensors: Tensors, head_Cl: Tensor) -> None:
    whole, real = torch.int64, torch.float64
    wanted = {"classes": whole, "counts": whole, "sums": real, "products": real, "num_signed": whole}
    if {name: t.dtype for name, t in tensors.items()} != wanted:
        given = {name: str(t.dtype) for name, t in tensors.items()}
        raise CalibrationError(
            f"CCVR moments are classes, counts and num_signed in int64, sums and products in float64; got {given}"
        )
    num, dim = len(tensors["classes"].reshape(-1)), head_Cl.shape[1]
    shapes = {"classes": (num,), "counts": (num,), "sums": (num, dim), "products": (num, packed_size(dim))}
    for name, shape in (shapes | {"num_signed": (1,)}).items():
        if tensors[name].shape != shape:
            raise CalibrationError(f"CCVR moments: {name} has shape {tuple(tensors[name].shape)}, expected {shape}")


def _trusted(tensors: Tensors) -> Moments:
    return Moments(
        classes=tensors["classes"],
        counts=tensors["counts"],
        sums=tensors["sums"],
        products=tensors["products"],
        num_signed=int(tensors["num_signed"][0]),
    )
