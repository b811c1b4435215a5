"""Partitions of a data set among clients: pure functions from labels to one index array per client."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from spherefed.data.columns import ByColumn
from spherefed.data.locations import user_path
from spherefed.data.partition_file import digest_parts, read_parts, write_parts
from spherefed.errors import ConfigError
from spherefed.field_types import check_types
from spherefed.schema import kind_of, shown

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Iid:
    """Every client gets a random part; sizes differ by at most one."""

    kind: ClassVar[str] = "iid"
    clients: int = 10
    """Number of clients (K in the paper)."""

    def __post_init__(self) -> None:
        check_types(self, "partition")
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), self.clients)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dirichlet:
    """Each class is divided among clients in proportions drawn from Dirichlet(α). A small α gives strong label skew."""

    kind: ClassVar[str] = "dirichlet"
    alpha: float = 0.1
    """Concentration: with 0.1 most clients have few classes; 100 is close to IID."""
    clients: int = 10
    """Number of clients (K in the paper)."""
    min_size: int = 0
    """Minimum number of examples per client; examples are moved one by one from the currently largest client."""
    balanced: bool = False
    """Give no further class to a client that has 1/K of all examples, as some codes do: sizes differ less."""

    def __post_init__(self) -> None:
        check_types(self, "partition")
        _check_clients(self.clients)
        _check_skew(self.alpha, self.min_size)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        _check_total(self.min_size, self.clients, len(labels))
        parts: list[list[Indices]] = [[] for _ in range(self.clients)]
        for label in range(num_classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = _shares(self.alpha, self.clients, rng)
            if self.balanced:
                shares = _shares_of_small(shares, [sum(map(len, p)) for p in parts], len(labels) / self.clients)
            split_points = _split_points(shares, len(members))
            for client, part in enumerate(np.split(members, split_points)):
                if len(part):
                    parts[client].append(part)
        empty = np.zeros(0, dtype=np.int64)
        return _with_min_size(self.min_size, [np.sort(np.concatenate(p)) if p else empty for p in parts], rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Examples, sorted by label, form equal shards; each client gets random shards (McMahan et al. 2017)."""

    kind: ClassVar[str] = "shards"
    shards_per_client: int = 2
    """With 2, most clients have examples of two classes."""
    clients: int = 10
    """Number of clients (K in the paper)."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if self.shards_per_client < 1:
            raise ConfigError(f"partition.shards_per_client must be at least 1, got {self.shards_per_client}")

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        _check_parts("clients · shards_per_client", self.clients * self.shards_per_client, len(labels))
        # Shuffle before the stable sort, so that the examples of a class are distributed randomly over its shards.
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        shards = np.array_split(order, self.clients * self.shards_per_client)
        assigned = rng.permutation(len(shards)).reshape(self.clients, self.shards_per_client)
        return [np.sort(np.concatenate([shards[shard] for shard in numbers])) for numbers in assigned]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantitySkew:
    """Clients have different sizes and the same label distribution: sizes in proportions drawn from Dirichlet(α)."""

    kind: ClassVar[str] = "quantity"
    alpha: float = 0.5
    """Concentration: a small α gives few large clients, a large α equal sizes."""
    clients: int = 10
    """Number of clients (K in the paper)."""
    min_size: int = 0
    """Minimum number of examples per client; examples are moved one by one from the currently largest client."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        _check_skew(self.alpha, self.min_size)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        _check_total(self.min_size, self.clients, len(labels))
        split_points = _split_points(_shares(self.alpha, self.clients, rng), len(labels))
        parts = np.split(rng.permutation(len(labels)), split_points)
        return _with_min_size(self.min_size, [np.sort(part) for part in parts], rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The partition in a file written by `write_partition`; it does not depend on the seed."""

    kind: ClassVar[str] = "stored"
    path: str
    """Index file, as `spherefed partition … --export` writes it."""
    clients: int = 10
    """Number of clients, which must equal the number in the file."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        parts = read_parts(user_path(self.path), len(labels))
        if len(parts) != self.clients:
            raise ConfigError(f"{self.path} has {len(parts)} clients, but partition.clients is {self.clients}")
        return parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Sites:
    """No partition: every client is a site with its own local data (`spherefed deploy`)."""

    kind: ClassVar[str] = "sites"
    clients: int = 3
    """Number of sites."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        raise ConfigError(
            "partition.kind = 'sites' needs sites with their own data; it does not split a data set; "
            "use `spherefed deploy run`, or another partition.kind"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Natural:
    """No partition: the caller passes one data set per client (`sf.run(…, clients=[…])`)."""

    kind: ClassVar[str] = "natural"
    clients: int = 2
    """Number of clients."""

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        raise ConfigError(
            "partition.kind = 'natural' needs one data set per client: pass clients=[…] to sf.run, "
            "or use another partition.kind"
        )


class OwnPartition(Protocol):
    """A user's partition: a frozen dataclass."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        """One array of indices per client, disjoint and complete."""


Partitioner = Iid | Dirichlet | Shards | QuantitySkew | Stored | Sites | Natural | ByColumn | OwnPartition


@dataclass(frozen=True, eq=False, slots=True)
class Partition:
    """One ascending index array per client. The arrays are disjoint and together contain every example."""

    parts: tuple[Indices, ...]
    label_counts: NDArray[np.int64]
    """(clients, classes): number of examples of each class at each client."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def digest(self) -> str:
        """SHA-256 of the index arrays: equal digests mean equal partitions, for any version of numpy."""
        return digest_parts(self.parts)


def partition(partitioner: Partitioner, labels: Indices, num_classes: int, rng: np.random.Generator) -> Partition:
    """Split examples by their labels; the parts are disjoint and complete."""
    _check_parts("partition.clients", partitioner.clients, len(labels))
    try:
        parts = tuple(np.asarray(part, dtype=np.int64) for part in partitioner.split(labels, num_classes, rng))
    except (ValueError, TypeError) as error:  # of a user's own partition
        raise ConfigError(
            f"partition {kind_of(partitioner)!r} must return one array of indices per client: {error}"
        ) from error
    all_indices = np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
    if len(parts) != partitioner.clients or not np.array_equal(all_indices, np.arange(len(labels))):
        raise ConfigError(
            f"partition {kind_of(partitioner)!r} must give each of {len(labels)} examples to exactly one of "
            f"{partitioner.clients} clients; got {len(parts)} parts with {len(np.unique(all_indices))} different "
            f"examples of {len(all_indices)}"
        )
    return partition_of(parts, labels, num_classes)


def partition_of(parts: tuple[Indices, ...], labels: Indices, num_classes: int) -> Partition:
    """The partition of these index arrays, with its label counts."""
    return Partition(parts, np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts]))


def write_partition(partition: Partition, path: Path) -> None:
    """Write the index arrays and their digest to a file for `read_partition` and the partitioner `Stored`."""
    write_parts(partition.parts, path)


def read_partition(path: Path, labels: Indices, num_classes: int) -> Partition:
    """Read a partition file. Raises DataError unless it is unchanged, disjoint and complete for these labels."""
    return partition_of(tuple(read_parts(path, len(labels))), labels, num_classes)


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise ConfigError(f"partition.clients must be at least 1, got {shown(clients)}")


def _check_parts(what: str, num_parts: int, num_examples: int) -> None:
    """Refuse partitions in which nearly every part would be empty: they only take time and memory."""
    most = max(1000, 10 * num_examples)
    if num_parts > most:
        raise ConfigError(
            f"{what} is {shown(num_parts)}, but there are {num_examples} examples: at most {most} are allowed"
        )


def _check_skew(alpha: float, min_size: int) -> None:
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"partition.alpha must be a positive number, got {alpha}")
    if min_size < 0:
        raise ConfigError(f"partition.min_size must not be negative, got {min_size}")


def _check_total(min_size: int, clients: int, num_examples: int) -> None:
    if min_size * clients > num_examples:
        raise ConfigError(
            f"partition.min_size {min_size} for {clients} clients needs {min_size * clients} "
            f"examples, but there are {num_examples}; lower min_size or clients"
        )


def _shares(alpha: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """One random vector from Dirichlet(α).

    For very small α, all gamma variables behind it can underflow, which gives 0/0. The limit for α → 0 is the whole
    share for one client, chosen uniformly. For very large α, their sum can overflow; the limit is equal shares.
    """
    with np.errstate(all="ignore"):
        shares = rng.dirichlet(np.full(clients, alpha))
    if abs(shares.sum() - 1.0) < 1e-6:
        return shares
    return np.eye(clients)[rng.integers(clients)] if alpha < 1 else np.full(clients, 1 / clients)


def _shares_of_small(shares: NDArray[np.float64], sizes: list[int], limit: float) -> NDArray[np.float64]:
    """Shares among the clients below the limit; if they drew nothing, the smallest client gets everything."""
    kept = shares * (np.array(sizes) < limit)
    total = float(kept.sum())
    return kept / total if total > 0 else np.eye(len(sizes))[int(np.argmin(sizes))]


def _split_points(shares: NDArray[np.float64], size: int) -> Indices:
    return np.rint(np.cumsum(shares)[:-1] * size).astype(np.int64)


def _with_min_size(min_size: int, parts: list[Indices], rng: np.random.Generator) -> list[Indices]:
    while min(len(part) for part in parts) < min_size:
        smallest = min(range(len(parts)), key=lambda client: len(parts[client]))
        largest = max(range(len(parts)), key=lambda client: len(parts[client]))
        position = rng.integers(len(parts[largest]))
        parts[smallest] = np.sort(np.append(parts[smallest], parts[largest][position]))
        parts[largest] = np.delete(parts[largest], position)
    return parts
