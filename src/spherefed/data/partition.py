"""Who gets which examples: pure functions from labels to index arrays, and the figures that describe the result."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spherefed.errors import ConfigError

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Iid:
    """Every client gets an equally large random part, sizes differing by one at most."""

    kind: ClassVar[str] = "iid"
    clients: int = 10
    """How many clients share the data (K in the paper)."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), self.clients)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dirichlet:
    """Every class is shared among the clients in proportions drawn from Dirichlet(α): small α, strong label skew."""

    kind: ClassVar[str] = "dirichlet"
    alpha: float = 0.1
    """Concentration: 0.1 leaves most clients with few classes, 100 is close to IID."""
    clients: int = 10
    """How many clients share the data (K in the paper)."""
    min_size: int = 0
    """Each client gets at least so many examples, moved one by one from the largest client of the moment."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not (self.alpha > 0 and np.isfinite(self.alpha)):
            raise ConfigError(f"partition.alpha must be a positive number, got {self.alpha}")
        if self.min_size < 0:
            raise ConfigError(f"partition.min_size must not be negative, got {self.min_size}")

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        if self.min_size * self.clients > len(labels):
            raise ConfigError(
                f"partition.min_size {self.min_size} for {self.clients} clients needs {self.min_size * self.clients} "
                f"examples, there are {len(labels)}; lower min_size or clients"
            )
        parts: list[list[Indices]] = [[] for _ in range(self.clients)]
        for label in range(num_classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            # At very small α all gamma draws behind a Dirichlet vector can underflow to 0/0;
            # its limit for α → 0 is one client taking all, drawn uniformly.
            shares = rng.dirichlet(np.full(self.clients, self.alpha))
            if not np.isfinite(shares).all():
                shares = np.eye(self.clients)[rng.integers(self.clients)]
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for client, part in enumerate(np.split(members, cuts)):
                if len(part):
                    parts[client].append(part)
        empty = np.zeros(0, dtype=np.int64)
        return _at_least(self.min_size, [np.sort(np.concatenate(p)) if p else empty for p in parts], rng)


Partitioner = Iid | Dirichlet


@dataclass(frozen=True, eq=False, slots=True)
class Partition:
    """The outcome: one ascending index array per client, disjoint, together complete."""

    parts: tuple[Indices, ...]
    label_counts: NDArray[np.int64]
    """(clients, classes): how many examples of each class a client holds."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def digest(self) -> str:
        """SHA-256 of the index arrays: equal digests mean equal partitions, whichever numpy drew them."""
        sha = hashlib.sha256()
        for part in self.parts:
            sha.update(len(part).to_bytes(8, "little"))
            sha.update(part.astype("<i8").tobytes())
        return sha.hexdigest()


def partition(partitioner: Partitioner, labels: Indices, num_classes: int, rng: np.random.Generator) -> Partition:
    """Split by the labels; checked to be disjoint and complete."""
    parts = tuple(part.astype(np.int64) for part in partitioner.split(labels, num_classes, rng))
    together = np.sort(np.concatenate(parts))
    assert np.array_equal(together, np.arange(len(labels))), "a partition must be disjoint and complete"
    counts = np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])
    return Partition(parts, counts)


def hold_out(size: int, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Positions 0..size−1 cut into (kept, held out), `floor(size · fraction)` held out, both ascending."""
    order = rng.permutation(size)
    num_held = int(size * fraction)
    return np.sort(order[num_held:]), np.sort(order[:num_held])


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {clients}")


def _at_least(min_size: int, parts: list[Indices], rng: np.random.Generator) -> list[Indices]:
    while min(len(part) for part in parts) < min_size:
        poor = min(range(len(parts)), key=lambda client: len(parts[client]))
        rich = max(range(len(parts)), key=lambda client: len(parts[client]))
        gift = rng.integers(len(parts[rich]))
        parts[poor] = np.sort(np.append(parts[poor], parts[rich][gift]))
        parts[rich] = np.delete(parts[rich], gift)
    return parts
