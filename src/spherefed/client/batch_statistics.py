"""What becomes of BatchNorm's running statistics in a federation, and how they are had again from additive moments.

Scale and shift are parameters like any others; this is about the means and variances that evaluation normalises by.
Step counters and other integer buffers never travel.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from spherefed.data.examples import Batch
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders.norm import batch_layers
from spherefed.tensors import Tensors, mismatch, non_finite

BatchStatistics = Literal["average", "local", "reestimate"]
"""average: the server averages them with the weights of the round, as the paper's FedAvg does.
local: each client keeps its own (SiloBN, Andreux et al. 2020), so there is no global model to evaluate.
reestimate: averaged while training; afterwards measured anew for the final weights, over everybody's examples."""

MEAN, VARIANCE = "running_mean", "running_var"


def no_moments(buffers: Tensors) -> dict[str, Tensor]:
    """The moments of no example: for each layer n, and per channel Σx and Σx², all in float64."""
    moments: dict[str, Tensor] = {}
    for name, mean in buffers.items():
        layer, _, last = name.rpartition(".")
        if last == MEAN:
            moments[f"{layer}.count"] = torch.zeros((), dtype=torch.float64, device=mean.device)
            moments[f"{layer}.sum"] = torch.zeros_like(mean, dtype=torch.float64)
            moments[f"{layer}.square_sum"] = torch.zeros_like(mean, dtype=torch.float64)
    return moments


def measure_moments(model: Classifier, batches: Iterable[Batch], buffers: Tensors) -> dict[str, Tensor]:
    """n, Σx and Σx² of what every BatchNorm layer is given, over examples and places.

    Only BatchNorm is in train mode, each batch normalised by itself as in training; dropout and the like are off.
    `buffers` are the statistics to be replaced.
    """
    moments = no_moments(buffers)

    def adding(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            x = given[0].detach().to(torch.float64).transpose(0, 1).flatten(1)  # (channels, examples · places)
            moments[f"{layer}.count"] += x.shape[1]
            moments[f"{layer}.sum"] += x.sum(dim=1)
            moments[f"{layer}.square_sum"] += x.square().sum(dim=1)

        return add

    model.eval()
    layers = {name: layer for name, layer in batch_layers(model).items() if f"{name}.{MEAN}" in buffers}
    hooks = [layer.train().register_forward_pre_hook(adding(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            for inputs, _ in batches:
                model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return moments


def pooled_statistics(total: Tensors, buffers: Tensors) -> dict[str, Tensor]:
    """μ = Σx / n  and, unbiased as torch keeps it,  σ² = (Σx² − nμ²) / (n − 1);  other buffers stay as they are.

    These are the statistics of all examples together, differences between clients included: exactly, up to float64,
    given what each layer was fed. What a deeper layer was fed was normalised batch by batch, not by the pooled values
    of the layers before it (Wu and Johnson 2021, precise BatchNorm).
    """
    pooled = dict(buffers)
    for name, mean in buffers.items():
        layer, _, last = name.rpartition(".")
        if last == MEAN and (n := float(total[f"{layer}.count"])) > 1:
            mu = total[f"{layer}.sum"] / n
            variance = (total[f"{layer}.square_sum"] - n * mu.square()) / (n - 1)
            pooled[name] = mu.to(mean)
            pooled[f"{layer}.{VARIANCE}"] = variance.clamp_min(0).to(mean)
    return pooled


def moments_fault(moments: Tensors, buffers: Tensors) -> str | None:
    """Why these cannot be moments for these statistics, or None."""
    if fault := mismatch(moments, no_moments(buffers)):
        return fault
    if bad := non_finite(moments):
        return f"{bad!r} is not finite"
    for name, tensor in moments.items():
        if name.rpartition(".")[2] in ("count", "square_sum") and bool((tensor < 0).any()):
            return f"{name!r} is negative"
    return None
