"""Seconds of one local round on the accelerator, under assumptions that the paper leaves open."""

from dataclasses import dataclass, replace
from typing import Literal

from spherefed.costs.gemms import Gemm, training_gemms
from spherefed.costs.networks import Network
from spherefed.costs.setting import Setting
from spherefed.costs.systolic import BYTES_PER_NUMBER, Array, Dataflow, gemm_cycles, streamed_elements

Optimizer = Literal["sgd", "momentum"]

UPDATE_NUMBERS: dict[Optimizer, int] = {"sgd": 3, "momentum": 5}
"""Numbers moved per weight in an update: read weight and gradient, write weight; read and write the momentum."""
SPECIAL_NUMBERS = 5
"""Numbers moved per element of the special unit: read, write; backward: read gradient and saved value, write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """Memory that can delay a product: time is the larger of computing it and moving its numbers."""

    bytes_per_second: float
    reuse: Literal["full", "none"]
    """"full": on-chip buffers hold everything, each tensor moves once; "none": operands move again in every fold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyAssumptions:
    """What is counted in the latency of a training step."""

    name: str
    stated: bool
    """Whether it contradicts nothing that the paper states."""
    batch_size: int
    """B; 64 in the paper "unless otherwise stated" (Sec. 5.1), and nothing else is stated for the accelerator."""
    cells: Literal["systolic", "ideal", "ideal without zeros"] = "systolic"
    """"ideal": every cell works in every cycle, so latency is proportional to operations; "ideal without zeros": and
    none multiplies the zeros that a stride puts between gradients. Unstated in the paper: whether they are skipped."""
    groups: Literal["serial", "packed"] = "serial"
    """"serial": a depthwise convolution is one product per channel; "packed": its channels fill the array."""
    special_unit: Literal["hidden", "serial"] = "hidden"
    """"hidden": norms, activations and pools overlap with products; "serial": they follow them."""
    optimizer: Optimizer | None = None
    """None: the update is not counted, or hidden."""
    bandwidth: Bandwidth | None = None
    """None: memory never delays."""


DDR3 = 12.8e9
"""Bytes per second. Unstated in the paper: 64 bits of DDR3-1600 at its peak, which the VC707 board can carry."""


def latency_assumptions(setting: Setting) -> tuple[LatencyAssumptions, ...]:
    """From the fewest to the most effects, at the setting's batch size and with an update for every example.

    The latter contradicts the batch size that the paper states.
    """
    single = _variants(1, stated=False, note="; B = 1") if setting.batch_size > 1 else ()
    return (*_variants(setting.batch_size, stated=True, note=""), *single)


def round_seconds(
    network: Network, setting: Setting, array: Array, dataflow: Dataflow, assumptions: LatencyAssumptions
) -> float:
    """E passes of an average client over its n_k examples, in batches of B; the last batch may be smaller."""
    full, rest = divmod(setting.client_examples, assumptions.batch_size)
    cycles = full * step_cycles(network, assumptions.batch_size, array, dataflow, assumptions)
    if rest:
        cycles += step_cycles(network, rest, array, dataflow, assumptions)
    return setting.epochs * cycles / array.clock_hz


def step_cycles(
    network: Network, batch_size: int, array: Array, dataflow: Dataflow, assumptions: LatencyAssumptions
) -> float:
    """Products, then the special unit's layers, then the update."""
    bandwidth = assumptions.bandwidth
    cycles = sum(
        product_cycles(gemm, array, dataflow, bandwidth, ideal_macs=_ideal_macs(gemm, assumptions))
        for gemm in training_gemms(network, batch_size)
    )
    if assumptions.special_unit == "serial":
        elements = batch_size * network.special_elements
        # Once forward and once backward.
        cycles += _special_cycles(2 * elements, SPECIAL_NUMBERS * elements, array, bandwidth)
    if assumptions.optimizer is not None:
        moved = UPDATE_NUMBERS[assumptions.optimizer] * network.num_trained
        cycles += _special_cycles(network.num_trained, moved, array, bandwidth)
    return cycles


def product_cycles(
    gemm: Gemm, array: Array, dataflow: Dataflow, bandwidth: Bandwidth | None, *, ideal_macs: int | None = None
) -> float:
    """The larger of computing a product and moving its operands and result.

    `ideal_macs`: multiplications that all cells share equally; None: the array takes the cycles of its folds.
    """
    computing = gemm_cycles(gemm, array, dataflow) if ideal_macs is None else ideal_macs / array.num_cells
    if bandwidth is None:
        return computing
    moved = gemm.distinct_elements if bandwidth.reuse == "full" else streamed_elements(gemm, array, dataflow)
    return max(computing, _moving_cycles(moved, array, bandwidth))


def _ideal_macs(gemm: Gemm, assumptions: LatencyAssumptions) -> int | None:
    """Multiplications of a product in which every cell works in every cycle; None for other products."""
    if assumptions.cells == "ideal without zeros":
        return gemm.macs - gemm.zero_macs
    is_ideal = assumptions.cells == "ideal" or (assumptions.groups == "packed" and gemm.count > 1)
    return gemm.macs if is_ideal else None


def _special_cycles(elements: int, moved: int, array: Array, bandwidth: Bandwidth | None) -> float:
    computing = elements / array.special_lanes
    return computing if bandwidth is None else max(computing, _moving_cycles(moved, array, bandwidth))


def _moving_cycles(numbers: int, array: Array, bandwidth: Bandwidth) -> float:
    return numbers * BYTES_PER_NUMBER / bandwidth.bytes_per_second * array.clock_hz


def _variants(batch_size: int, *, stated: bool, note: str) -> tuple[LatencyAssumptions, ...]:
    once = Bandwidth(bytes_per_second=DDR3, reuse="full")
    streamed = Bandwidth(bytes_per_second=DDR3, reuse="none")
    slow = Bandwidth(bytes_per_second=DDR3 / 10, reuse="full")
    array_only = LatencyAssumptions(name=f"array only{note}", stated=stated, batch_size=batch_size)
    update = replace(array_only, name=f"array, update{note}", optimizer="momentum")
    packed = replace(update, groups="packed")
    return (
        replace(array_only, name=f"operations only{note}", cells="ideal"),
        replace(array_only, name=f"operations only, zeros skipped{note}", cells="ideal without zeros"),
        array_only,
        update,
        replace(update, name=f"array, update, special unit{note}", special_unit="serial"),
        replace(update, name=f"array, update; 12.8 GB/s, full reuse{note}", bandwidth=once),
        replace(update, name=f"array, update; 12.8 GB/s, no reuse{note}", bandwidth=streamed),
        replace(packed, name=f"groups packed, update{note}"),
        replace(packed, name=f"groups packed, update; 12.8 GB/s, full reuse{note}", bandwidth=once),
        replace(packed, name=f"groups packed, update; 1.28 GB/s, full reuse{note}", bandwidth=slow),
        replace(
            packed,
            name=f"groups packed, update, special unit; 1.28 GB/s, full reuse{note}",
            special_unit="serial",
            bandwidth=slow,
        ),
    )
