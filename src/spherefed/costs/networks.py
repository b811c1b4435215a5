"""What a network costs, read off the network itself: one forward pass of one example on torch's meta device.

Hooks record the shape of every matrix product; a dispatch mode counts the elements of every other operation; autograd
says which tensors it keeps for the backward pass. Nothing is computed, and no layer is listed by hand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from spherefed.errors import ModelError
from spherefed.nn import heads
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import Encoder
from spherefed.nn.layers import eval_mode

META = torch.device("meta")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A convolution or linear layer as it was called, per example; a linear layer has one position and one tap."""

    name: str
    in_channels: int
    out_channels: int
    taps: int
    """Positions of the kernel, 9 for 3×3."""
    groups: int
    in_positions: int
    """H of the layer's input, height × width."""
    out_positions: int
    """P of its output."""
    input_gradient: bool
    """Whether training needs the gradient of the input; the first layer's is not needed."""
    weight_gradient: bool
    """Whether training needs the gradient of the weight; a fixed head's is not needed."""

    @property
    def num_weights(self) -> int:
        return self.taps * self.in_channels * self.out_channels // self.groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A classifier as a list of matrix products, and the rest as counts."""

    layers: tuple[Layer, ...]
    """In the order of the forward pass; the last is the head."""
    special_elements: int
    """Results of all other operations (norms, activations, pools, sums) in the forward pass of one example."""
    saved_bytes: int
    """What autograd keeps of one example until the backward pass."""
    product_input_bytes: int
    """What is kept if everything but the inputs of trained products is computed again."""
    num_trained: int
    """Parameters with a gradient."""
    num_fixed: int
    """Weights without one: a fixed head, frozen layers."""

    @property
    def dim(self) -> int:
        """l, the width of the features."""
        return self.layers[-1].in_channels


def describe_network(
    encoder: Encoder, num_classes: int, *, trained_head: bool, input_shape: tuple[int, ...] = (3, 32, 32)
) -> Network:
    """An encoder with FedAvg's trained head, or with SphereFed's unit features and fixed head.

    >>> from spherefed.nn.encoders import ConvNet
    >>> network = describe_network(ConvNet(), 100, trained_head=False)
    >>> network.dim, network.num_fixed, network.layers[-1].weight_gradient
    (1024, 102400, False)
    """
    dim = feature_dim(encoder, input_shape)
    with META:
        body = encoder.build(input_shape)
        head = heads.ClassifierHead(torch.empty(num_classes, dim), learned=trained_head)
    return trace(Classifier(body, head, num_classes=num_classes, normalize=not trained_head), input_shape)


def feature_dim(encoder: Encoder, input_shape: tuple[int, ...] = (3, 32, 32)) -> int:
    """l of an encoder."""
    with META:
        body = encoder.build(input_shape)
        with eval_mode(body), torch.no_grad():
            features: Tensor = body(torch.empty(1, *input_shape))
    return features.shape[1]


def trace(classifier: Classifier, input_shape: tuple[int, ...]) -> Network:
    """Run one example through a classifier on the meta device and write down what happens."""
    layers: list[Layer] = []
    product_inputs: list[Tensor] = []
    handles = [
        module.register_forward_hook(_recorder(name, layers, product_inputs))
        for name, module in classifier.named_modules()
        if isinstance(module, _ConvNd | nn.Linear | heads.ClassifierHead)
    ]
    kept: list[Tensor] = []
    counter = _OperationCounter()
    try:
        with META, eval_mode(classifier), torch.autograd.graph.saved_tensors_hooks(_keeper(kept), _same), counter:
            classifier(torch.empty(1, *input_shape))
    finally:
        for handle in handles:
            handle.remove()
    if counter.num_products != len(layers):
        raise ModelError(
            f"the model computes {counter.num_products} matrix products, {len(layers)} of them in convolution or "
            "linear layers; there is no cost model for the others, such as attention"
        )
    weights = (*classifier.parameters(), *classifier.buffers())
    head = classifier.head
    return Network(
        layers=tuple(layers),
        special_elements=counter.special_elements,
        saved_bytes=_distinct_bytes(kept, without=weights),
        product_input_bytes=_distinct_bytes(product_inputs, without=()),
        num_trained=sum(p.numel() for p in classifier.parameters() if p.requires_grad),
        num_fixed=sum(p.numel() for p in classifier.parameters() if not p.requires_grad)
        + (0 if head.learned else head.weight.numel()),
    )


class _OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products, and the results of every operation that is neither a product nor a view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_products = 0
        self.special_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple | list) else result
        if func.overloadpacket in flop_registry:
            self.num_products += 1
        elif isinstance(first, Tensor) and not func.is_view and func.overloadpacket not in _COPIES:
            self.special_elements += first.numel()
        return result


_COPIES = (torch.ops.aten.empty, torch.ops.aten._unsafe_view)
"""Not views for torch, but no work either."""


def _recorder(name: str, layers: list[Layer], product_inputs: list[Tensor]) -> Any:
    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, _ConvTransposeNd):
            raise ModelError(f"layer {name!r} is a transposed convolution, for which there is no cost model")
        weight = module.weight
        assert isinstance(weight, Tensor)
        if weight.requires_grad:
            product_inputs.append(inputs[0])
        groups = module.groups if isinstance(module, _ConvNd) else 1
        layers.append(
            Layer(
                name=name,
                in_channels=weight.shape[1] * groups,
                out_channels=weight.shape[0],
                taps=prod(weight.shape[2:]),
                groups=groups,
                in_positions=inputs[0].numel() // (weight.shape[1] * groups),
                out_positions=output.numel() // weight.shape[0],
                input_gradient=inputs[0].requires_grad,
                weight_gradient=weight.requires_grad,
            )
        )

    return record


def _keeper(kept: list[Tensor]) -> Any:
    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    return keep


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _distinct_bytes(tensors: Iterable[Tensor], *, without: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each once: a layer's output is kept once, even if two layers need it."""
    known = {tensor.untyped_storage()._cdata for tensor in without}
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for storage, size in sizes.items() if storage not in known)
