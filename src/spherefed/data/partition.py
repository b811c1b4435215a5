"""Who gets which examples: pure functions from labels to index arrays, and the figures that describe the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spherefed.data.partition_file import digest_parts, read_parts, write_parts
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
        _check_skew(self.alpha, self.min_size)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        _check_enough(self.min_size, self.clients, len(labels))
        parts: list[list[Indices]] = [[] for _ in range(self.clients)]
        for label in range(num_classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = _cuts(_shares(self.alpha, self.clients, rng), len(members))
            for client, part in enumerate(np.split(members, cuts)):
                if len(part):
                    parts[client].append(part)
        empty = np.zeros(0, dtype=np.int64)
        return _at_least(self.min_size, [np.sort(np.concatenate(p)) if p else empty for p in parts], rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Examples sorted by label, cut into equal shards, a few random shards per client (McMahan et al. 2017)."""

    kind: ClassVar[str] = "shards"
    shards_per_client: int = 2
    """With 2, most clients see two classes."""
    clients: int = 10
    """How many clients share the data (K in the paper)."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if self.shards_per_client < 1:
            raise ConfigError(f"partition.shards_per_client must be at least 1, got {self.shards_per_client}")

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        # Shuffled before the stable sort: which examples of a class fall into the same shard is random.
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        shards = np.array_split(order, self.clients * self.shards_per_client)
        hands = rng.permutation(len(shards)).reshape(self.clients, self.shards_per_client)
        return [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in hands]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantitySkew:
    """Clients of very different size with the same mix of labels: sizes in proportions drawn from Dirichlet(α)."""

    kind: ClassVar[str] = "quantity"
    alpha: float = 0.5
    """Concentration: small α, few large clients; large α, equal sizes."""
    clients: int = 10
    """How many clients share the data (K in the paper)."""
    min_size: int = 0
    """Each client gets at least so many examples, moved one by one from the largest client of the moment."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        _check_skew(self.alpha, self.min_size)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        _check_enough(self.min_size, self.clients, len(labels))
        cuts = _cuts(_shares(self.alpha, self.clients, rng), len(labels))
        parts = np.split(rng.permutation(len(labels)), cuts)
        return _at_least(self.min_size, [np.sort(part) for part in parts], rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The partition in a file that `write_partition` made, here or elsewhere; the seed changes nothing."""

    kind: ClassVar[str] = "stored"
    path: str
    clients: int = 10
    """How many clients the file is for: another number in the file is refused."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        parts = read_parts(Path(self.path), len(labels))
        if len(parts) != self.clients:
            raise ConfigError(f"{self.path} is for {len(parts)} clients, partition.clients is {self.clients}")
        return parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Sites:
    """Nothing is split: every client is a site that has its own data, and keeps them (`spherefed deploy`)."""

    kind: ClassVar[str] = "sites"
    clients: int = 3
    """How many sites take part."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        raise ConfigError(
            "partition.kind = 'sites' means that every site has its own data, which nobody here can split; "
            "use `spherefed deploy run`, or another partition.kind"
        )


Partitioner = Iid | Dirichlet | Shards | QuantitySkew | Stored | Sites


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
        return digest_parts(self.parts)


def partition(partitioner: Partitioner, labels: Indices, num_classes: int, rng: np.random.Generator) -> Partition:
    """Split by the labels; checked to be disjoint and complete."""
    parts = tuple(part.astype(np.int64) for part in partitioner.split(labels, num_classes, rng))
    together = np.sort(np.concatenate(parts))
    assert np.array_equal(together, np.arange(len(labels))), "a partition must be disjoint and complete"
    return _counted(parts, labels, num_classes)


def write_partition(outcome: Partition, path: Path) -> None:
    """Store the index arrays with their digest; `read_partition` or the partitioner `Stored` use them again."""
    write_parts(outcome.parts, path)


def read_partition(path: Path, labels: Indices, num_classes: int) -> Partition:
    """The stored partition, refused if it is not of these many examples, not disjoint, not complete or changed."""
    return _counted(tuple(read_parts(path, len(labels))), labels, num_classes)


def hold_out(size: int, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Positions 0..size−1 cut into (kept, held out), `floor(size · fraction)` held out, both ascending."""
    order = rng.permutation(size)
    num_held = int(size * fraction)
    return np.sort(order[num_held:]), np.sort(order[:num_held])


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {clients}")


def _check_skew(alpha: float, min_size: int) -> None:
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"partition.alpha must be a positive number, got {alpha}")
    if min_size < 0:
        raise ConfigError(f"partition.min_size must not be negative, got {min_size}")


def _check_enough(min_size: int, clients: int, num_examples: int) -> None:
    if min_size * clients > num_examples:
        raise ConfigError(
            f"partition.min_size {min_size} for {clients} clients needs {min_size * clients} "
            f"examples, there are {num_examples}; lower min_size or clients"
        )


def _shares(alpha: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """One Dirichlet(α) vector.

    At very small α all gamma draws behind it can underflow to 0/0; its limit for α → 0 is one client taking all,
    drawn uniformly. At very large α their sum can overflow; its limit is equal shares.
    """
    with np.errstate(all="ignore"):
        shares = rng.dirichlet(np.full(clients, alpha))
    if abs(shares.sum() - 1.0) < 1e-6:
        return shares
    return np.eye(clients)[rng.integers(clients)] if alpha < 1 else np.full(clients, 1 / clients)


def _cuts(shares: NDArray[np.float64], size: int) -> Indices:
    return np.rint(np.cumsum(shares)[:-1] * size).astype(np.int64)


def _counted(parts: tuple[Indices, ...], labels: Indices, num_classes: int) -> Partition:
    return Partition(parts, np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts]))


def _at_least(min_size: int, parts: list[Indices], rng: np.random.Generator) -> list[Indices]:
    while min(len(part) for part in parts) < min_size:
        poor = min(range(len(parts)), key=lambda client: len(parts[client]))
        rich = max(range(len(parts)), key=lambda client: len(parts[client]))
        gift = rng.integers(len(parts[rich]))
        parts[poor] = np.sort(np.append(parts[poor], parts[rich][gift]))
        parts[rich] = np.delete(parts[rich], gift)
    return parts
