"""BatchNorm's running statistics in a federation, and how to re-estimate them from additive moments.

Scale and shift are ordinary parameters. This module is about the means and variances that evaluation normalises by.
Step counters and other integer buffers are never sent.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from spherefed.data.examples import Batch
from spherefed.nn.classifier import Classifier
from spherefed.nn.layers import batch_norm_layers, eval_mode
from spherefed.tensors import Tensors, mismatch, non_finite

BatchStatistics = Literal["average", "local", "reestimate"]
"""average: the server averages them with the weights of the round, as the paper's FedAvg does.
local: each client keeps its own (SiloBN, Andreux et al. 2020), so there is no global model to evaluate.
reestimate: averaged during training, then measured again for the final weights, over the examples of all clients."""

MEAN, VARIANCE = "running_mean", "running_var"
MAX_INPUTS = 1e15
"""Of a layer at one client, over all examples and places; sums over clients stay finite."""
MAX_MEAN_SQUARE = 1e30
"""Of the inputs of a layer; pooled variances below it are finite in float32."""


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
    """n, Σx and Σx² of the inputs of every BatchNorm layer, over examples and positions.

    Only BatchNorm is in train mode and normalises each batch by itself, as in training; dropout is off.
    `buffers` are the statistics to be replaced.
    """
    moments = no_moments(buffers)

    def adding(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            x = given[0].detach().to(torch.float64).transpose(0, 1).flatten(1)  # (channels, examples · positions)
            moments[f"{layer}.count"] += x.shape[1]
            moments[f"{layer}.sum"] += x.sum(dim=1)
            moments[f"{layer}.square_sum"] += x.square().sum(dim=1)

        return add

    layers = {name: layer for name, layer in batch_norm_layers(model).items() if f"{name}.{MEAN}" in buffers}
    with eval_mode(model), torch.no_grad():
        hooks = [layer.train().register_forward_pre_hook(adding(name)) for name, layer in layers.items()]
        try:
            for inputs, _ in batches:
                model(inputs)
        finally:
            for hook in hooks:
                hook.remove()
    return moments


def pooled_statistics(total: Tensors, buffers: Tensors) -> dict[str, Tensor]:
    """μ = Σx / n  and, unbiased as torch keeps it,  σ² = (Σx² − nμ²) / (n − 1);  other buffers stay as they are.

    These are the statistics of all examples together, with the differences between clients: exact, up to float64, for
    the inputs that each layer received. The inputs of a deeper layer were normalised batch by batch, not by the pooled
    values of the layers before it (Wu and Johnson 2021, precise BatchNorm).
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


def moments_fault(moments: Tensors, buffers: Tensors, num_examples: int) -> str | None:
    """Why these cannot be moments of so many examples for these statistics, or None."""
    if fault := mismatch(moments, no_moments(buffers)):
        return fault
    if bad := non_finite(moments):
        return f"{bad!r} is not finite"
    for name, tensor in moments.items():
        if name.rpartition(".")[2] in ("count", "square_sum") and bool((tensor < 0).any()):
            return f"{name!r} is negative"
    for layer in [name.removesuffix(".count") for name in moments if name.endswith(".count")]:
        count, total, squares = (moments[f"{layer}.{which}"] for which in ("count", "sum", "square_sum"))
        if float(count) and not num_examples:
            return f"{layer!r}: {float(count):g} inputs of no example"
        if fault := _layer_fault(float(count), total, squares):
            return f"{layer!r}: {fault}"
    return None


def inputs_per_example(moments: Tensors, num_examples: int) -> dict[str, float]:
    """How many inputs each layer had per example."""
    return {layer: count / num_examples for layer, count in _counts(moments).items()}


def input_sizes(moments: Tensors) -> dict[str, float]:
    """How large the inputs of each layer were: √ of the mean of ‖x‖²."""
    return {
        layer: float((moments[f"{layer}.square_sum"].sum() / count).sqrt()) for layer, count in _counts(moments).items()
    }


def _counts(moments: Tensors) -> dict[str, float]:
    """Number of inputs of each layer that had any."""
    counts = {name.removesuffix(".count"): float(n) for name, n in moments.items() if name.endswith(".count")}
    return {layer: count for layer, count in counts.items() if count}


def _layer_fault(n: float, total: Tensor, squares: Tensor) -> str | None:
    """(Σx)² ≤ n Σx² up to rounding, and a mean square that float32 can hold."""
    if n == 0:
        return "sums of no example" if bool(total.any()) or bool(squares.any()) else None
    if n > MAX_INPUTS:
        return f"{n:g} inputs, at most {MAX_INPUTS:g} are possible"
    if bool((squares > MAX_MEAN_SQUARE * n).any()):
        return f"a mean square is above {MAX_MEAN_SQUARE:g}"
    if bool((total.square() > n * squares * (1 + 1e-6)).any()):
        return "(Σx)² exceeds n Σx²"
    return None
