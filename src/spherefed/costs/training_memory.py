"""Peak memory of local training: numbers per weight, and activations that wait for the backward pass."""

from dataclasses import dataclass, replace
from typing import Literal

from spherefed.costs.networks import Network
from spherefed.costs.setting import Setting
from spherefed.costs.systolic import BYTES_PER_NUMBER


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAssumptions:
    """What is in memory at the peak, when the forward pass ends and buffers for all gradients exist."""

    name: str
    stated: bool
    """Whether it contradicts nothing that the paper states."""
    batch_size: int
    """Examples whose activations are kept; 0: activations are not counted."""
    kept: Literal["autograd", "product inputs"]
    """"autograd": what torch keeps; "product inputs": the least, everything else is computed again."""
    numbers_per_weight: int
    """Of a trained weight: 2 with its gradient, 3 with momentum too, 4 with Adam. A fixed weight is one number."""


def memory_assumptions(setting: Setting) -> tuple[MemoryAssumptions, ...]:
    """Activations of a batch, of one example, and none; optimizers with less and more state.

    Unstated in the paper: which tensors of a batch wait for the backward pass. Its batch size is 64 "unless otherwise
    stated" (Sec. 5.1), so that keeping one example, or none, contradicts it; so do other optimizers than momentum.
    """
    B = setting.batch_size
    batch = MemoryAssumptions(
        name=f"momentum, activations of B = {B}", stated=True, batch_size=B, kept="autograd", numbers_per_weight=3
    )
    single = replace(batch, name="momentum, activations of B = 1", stated=False, batch_size=1)
    none = replace(single, name="momentum, no activations", batch_size=0)
    return (
        batch,
        replace(batch, name=f"momentum, inputs of products of B = {B}", kept="product inputs"),
        single,
        replace(single, name="momentum, inputs of products of B = 1", kept="product inputs"),
        replace(none, name="plain SGD, no activations", numbers_per_weight=2),
        none,
        replace(none, name="Adam, no activations", numbers_per_weight=4),
    )


def peak_bytes(network: Network, assumptions: MemoryAssumptions) -> int:
    """4 (fixed + numbers · trained) + B · what is kept of one example."""
    weights = network.num_fixed + assumptions.numbers_per_weight * network.num_trained
    kept = network.saved_bytes if assumptions.kept == "autograd" else network.product_input_bytes
    return BYTES_PER_NUMBER * weights + assumptions.batch_size * kept
