"""SphereFed, Table 1 as a value: traffic and operations of the classifier for any feature dimension and class count."""

from dataclasses import dataclass

from spherefed.costs import flops, traffic
from spherefed.costs.setting import TABLE_1, Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodCost:
    """One row: what the classifier costs over a whole run, as the paper counts it."""

    method: str
    bytes_per_client: int
    """Sent to and from one client, in dense 32-bit numbers."""
    flops: int
    """All clients and the server, without the forward pass of the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """How many times less SphereFed's classifier costs than another method's."""

    against: str
    bytes_factor: float
    flops_factor: float
    """As the paper counts: three operations per weight, example and pass in the training of a head."""
    operations_factor: float
    """With the training of heads counted by operation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1:
    """The rows of Table 1, and what this library's own messages and operations are instead."""

    setting: Setting
    """Includes `refit_epochs`, which CCVR's operations depend on and the paper does not state."""
    rows: tuple[MethodCost, ...]
    reductions: tuple[Reduction, ...]
    """The paper claims "over two orders of magnitude"; against FedAvg its own numbers give 14 times fewer bytes,
    and counted by operation neither method computes a hundred times as much."""
    exact_statistics_bytes: int
    """V packed and U, in int64: what a client of this library sends for FFC."""
    packed_statistics_bytes: int
    """The same in 32 bits."""
    exact_moments_bytes: int
    """CCVR's moments in 64 bits, packed, of a client that holds every class: what this library sends for CCVR."""
    head_training_flops: int
    """FedAvg's row counted by operation: weight gradient, weight decay, momentum and update."""
    solve_flops: int
    """Eq. 12 on the server, which the paper's sum leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedCost:
    """One row as the paper prints it."""

    method: str
    megabytes: int
    gigaflops: float


PRINTED = (
    PrintedCost(method="FedAvg", megabytes=102, gigaflops=1.9e4),
    PrintedCost(method="CCVR", megabytes=758, gigaflops=2.1e4),
    PrintedCost(method="SphereFed", megabytes=7, gigaflops=1.7e2),
)
"""SphereFed, Table 1. The numbers are truncated, not rounded: 1.7·10² stands for 176.6."""


def table_1(setting: Setting = TABLE_1) -> Table1:
    """Every row of Table 1.

    >>> [(row.method, row.bytes_per_client // 10**6) for row in table_1().rows]
    [('FedAvg', 102), ('CCVR', 758), ('SphereFed', 7)]
    """
    fedavg = _row("FedAvg", traffic.fedavg_bytes(setting), flops.fedavg_flops(setting))
    ccvr = _row("CCVR", traffic.ccvr_bytes(setting), flops.ccvr_flops(setting))
    spherefed = _row("SphereFed", traffic.ffc_bytes(setting), flops.ffc_flops(setting))
    return Table1(
        setting=setting,
        rows=(fedavg, ccvr, spherefed),
        reductions=(
            _reduction(fedavg, spherefed, flops.head_training_flops(setting)),
            _reduction(ccvr, spherefed, flops.ccvr_operations(setting)),
        ),
        exact_statistics_bytes=traffic.ffc_packed_bytes(setting),
        packed_statistics_bytes=traffic.ffc_packed_bytes(setting, bytes_per_number=4),
        exact_moments_bytes=traffic.ccvr_packed_bytes(setting) - traffic.fedavg_bytes(setting),
        head_training_flops=flops.head_training_flops(setting),
        solve_flops=flops.ffc_solve_flops(setting),
    )


def _row(method: str, bytes_per_client: int, num_flops: int) -> MethodCost:
    return MethodCost(method=method, bytes_per_client=bytes_per_client, flops=num_flops)


def _reduction(other: MethodCost, spherefed: MethodCost, operations: int) -> Reduction:
    """`operations`: of the other method. SphereFed trains no head, so both counts of it agree."""
    return Reduction(
        against=other.method,
        bytes_factor=other.bytes_per_client / spherefed.bytes_per_client,
        flops_factor=other.flops / spherefed.flops,
        operations_factor=operations / spherefed.flops,
    )
