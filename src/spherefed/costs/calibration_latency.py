"""Seconds of one calibration on the accelerator: an average client, then the server, as in SphereFed, Fig. 5d."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from spherefed.costs.gemms import Gemm, encoder_gemms
from spherefed.costs.latency import DDR3, Bandwidth, product_cycles
from spherefed.costs.networks import Network
from spherefed.costs.setting import Setting
from spherefed.costs.systolic import Array, Dataflow


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationAssumptions:
    """What is counted in the latency of a calibration."""

    name: str
    stated: bool
    """Whether it contradicts nothing that the paper states, Table 1's sum for CCVR included."""
    refit_epochs: int
    """CCVR's. Unstated in the paper: about 100 give the printed sum of Table 1."""
    server: Literal["array", "free"] = "array"
    """Unstated in the paper: what the server is. "array": the same accelerator; "free": a server so fast
    that its time does not count."""
    encoder: Literal["counted", "left out"] = "counted"
    """The forward pass to the features, which both methods make."""
    bandwidth: Bandwidth | None = None
    """None: memory never delays."""


def calibration_assumptions(setting: Setting) -> tuple[CalibrationAssumptions, ...]:
    """The setting's refit on the same accelerator, then shorter ones, a fast server, and no encoder."""
    epochs = setting.refit_epochs
    base = CalibrationAssumptions(name=f"{epochs} refit epochs", stated=True, refit_epochs=epochs)
    streamed = Bandwidth(bytes_per_second=DDR3, reuse="none")
    return (
        base,
        replace(base, name=f"{epochs} refit epochs; 12.8 GB/s, no reuse", bandwidth=streamed),
        replace(base, name=f"{epochs} refit epochs, without the encoder", encoder="left out"),
        replace(base, name="fast server", server="free"),
        replace(base, name="10 refit epochs", stated=False, refit_epochs=10),
        replace(base, name="1 refit epoch", stated=False, refit_epochs=1),
    )


def ffc_seconds(
    network: Network, setting: Setting, array: Array, dataflow: Dataflow, assumptions: CalibrationAssumptions
) -> float:
    """Features and Eq. 9 on one client; Eq. 12 on the server."""
    dim, C, n = network.dim, setting.num_classes, setting.client_examples
    client = [Gemm(m=dim, n=dim, k=n), Gemm(m=dim, n=C, k=n)]
    # Cholesky's factor and both substitutions depend on what they have just computed, so this is a lower bound.
    solve = (dim**3 / 6 + dim**2 * C) / array.num_cells
    cycles = _client_cycles(network, client, setting, array, dataflow, assumptions)
    return (cycles + (solve if assumptions.server == "array" else 0)) / array.clock_hz


def ccvr_seconds(
    network: Network, setting: Setting, array: Array, dataflow: Dataflow, assumptions: CalibrationAssumptions
) -> float:
    """Features and class moments on one client; factors, virtual features and the refit on the server."""
    dim, C = network.dim, setting.num_classes
    client = [Gemm(m=dim, n=dim, k=-(-setting.client_examples // C), count=C)]
    cycles = _client_cycles(network, client, setting, array, dataflow, assumptions)
    if assumptions.server == "array":
        factors = C * dim**3 / 6 / array.num_cells
        products = _server_gemms(dim, setting, assumptions.refit_epochs)
        cycles += factors + _cycles(products, array, dataflow, assumptions)
    return cycles / array.clock_hz


def _server_gemms(dim: int, setting: Setting, refit_epochs: int) -> list[Gemm]:
    """Virtual features of every class, then forward pass and weight gradient of the head in every step of the refit."""
    B, C = setting.batch_size, setting.num_classes
    steps = refit_epochs * -(-setting.num_virtual * C // B)
    sampling = Gemm(m=setting.num_virtual, n=dim, k=dim, count=C)
    return [sampling, Gemm(m=B, n=C, k=dim, count=steps), Gemm(m=dim, n=C, k=B, count=steps)]


def _client_cycles(
    network: Network,
    moments: Iterable[Gemm],
    setting: Setting,
    array: Array,
    dataflow: Dataflow,
    assumptions: CalibrationAssumptions,
) -> float:
    """The encoder's forward pass in batches of B, and the products of the features."""
    cycles = _cycles(moments, array, dataflow, assumptions)
    if assumptions.encoder == "counted":
        full, rest = divmod(setting.client_examples, setting.batch_size)
        cycles += full * _cycles(encoder_gemms(network, setting.batch_size), array, dataflow, assumptions)
        if rest:
            cycles += _cycles(encoder_gemms(network, rest), array, dataflow, assumptions)
    return cycles


def _cycles(gemms: Iterable[Gemm], array: Array, dataflow: Dataflow, assumptions: CalibrationAssumptions) -> float:
    return sum(product_cycles(gemm, array, dataflow, assumptions.bandwidth) for gemm in gemms)
