"""The matrix products of a layer in training: forward, gradient of the input, gradient of the weight.

Convolutions are lowered to products of patches (im2col), once per group. B is the batch size, k the taps of the
kernel, H and P the positions of input and output. At stride s the gradient of the input is a convolution over H
positions with zeros between the s-th ones, so it takes s² times the operations of the forward pass in two dimensions;
`zero_macs` counts those with zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from spherefed.costs.networks import Layer, Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """`count` products of an m×k by a k×n matrix."""

    m: int
    n: int
    k: int
    count: int = 1
    num_elements: int | None = None
    """Elements of both operands and the result in memory, where the patches of a convolution overlap.

    None: as many as in the matrices.
    """
    zero_macs: int = 0
    """How many of the multiplications are with zeros that a stride puts between gradients."""

    @property
    def macs(self) -> int:
        """Multiplications with addition."""
        return self.count * self.m * self.n * self.k

    @property
    def distinct_elements(self) -> int:
        """Elements that are read or written at least once."""
        if self.num_elements is not None:
            return self.num_elements
        return self.count * (self.m * self.k + self.k * self.n + self.m * self.n)


def forward_gemm(layer: Layer, batch_size: int) -> Gemm:
    """g × (B P, C_o/g, k C_i/g); the head: (B, C, l)."""
    return Gemm(
        m=batch_size * layer.out_positions,
        n=layer.out_channels // layer.groups,
        k=layer.taps * layer.in_channels // layer.groups,
        count=layer.groups,
        num_elements=_tensor_elements(layer, batch_size),
    )


def input_gradient_gemm(layer: Layer, batch_size: int) -> Gemm | None:
    """g × (B H, C_i/g, k C_o/g), None for the first layer; the head: (B, l, C)."""
    if not layer.input_gradient:
        return None
    product = Gemm(
        m=batch_size * layer.in_positions,
        n=layer.in_channels // layer.groups,
        k=layer.taps * layer.out_channels // layer.groups,
        count=layer.groups,
        num_elements=_tensor_elements(layer, batch_size),
    )
    # Without zeros, every multiplication of the forward pass has one here.
    return replace(product, zero_macs=max(0, product.macs - forward_gemm(layer, batch_size).macs))


def weight_gradient_gemm(layer: Layer, batch_size: int) -> Gemm | None:
    """g × (k C_i/g, C_o/g, B P), None for a fixed head; a trained head: (l, C, B)."""
    if not layer.weight_gradient:
        return None
    return Gemm(
        m=layer.taps * layer.in_channels // layer.groups,
        n=layer.out_channels // layer.groups,
        k=batch_size * layer.out_positions,
        count=layer.groups,
        num_elements=_tensor_elements(layer, batch_size),
    )


def training_gemms(network: Network, batch_size: int) -> Iterator[Gemm]:
    """Every product of one training step."""
    for layer in network.layers:
        yield forward_gemm(layer, batch_size)
    for layer in reversed(network.layers):
        for gemm in (weight_gradient_gemm(layer, batch_size), input_gradient_gemm(layer, batch_size)):
            if gemm is not None:
                yield gemm


def encoder_gemms(network: Network, batch_size: int) -> Iterator[Gemm]:
    """The products of one forward pass to the features."""
    return (forward_gemm(layer, batch_size) for layer in network.layers[:-1])


def _tensor_elements(layer: Layer, batch_size: int) -> int:
    """Input, weight and output of a layer: each of its three products reads two of them or their gradients."""
    inputs = batch_size * layer.in_positions * layer.in_channels
    outputs = batch_size * layer.out_positions * layer.out_channels
    return inputs + layer.num_weights + outputs
