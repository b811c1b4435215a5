"""A network widened so that several copies of it, each with its own weights, are one computation.

Copies lie side by side along the channels, (n, K·c, h, w) and (n, K·l), the first copy's channels first. What works
channel by channel (ReLU, pooling, flattening, adding) needs no change; layers that mix channels are replaced by ones
that mix those of each copy alone. How many copies take part is seen from the width of what a layer is given.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherefed.errors import ConfigError

_CHANNEL_BY_CHANNEL = frozenset(
    {
        nn.Sequential,
        nn.Identity,
        nn.Flatten,
        nn.ReLU,
        nn.ReLU6,
        nn.SiLU,
        nn.GELU,
        nn.Sigmoid,
        nn.Tanh,
    }
)
_POOLING = frozenset({nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d})


def stacked(module: nn.Module, size: int) -> nn.Module:
    """Up to `size` copies side by side; its parameters are called as the module's and have copies as first axis.

    >>> wide = stacked(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), size=3)
    >>> wide(torch.zeros(5, 2 * 8)).shape
    torch.Size([5, 8])
    """
    match module:
        case nn.Linear():
            return StackedLinear(module, size)
        case nn.Conv2d() if module.padding_mode == "zeros":
            return StackedConv2d(module, size)
        case nn.GroupNorm():
            return StackedGroupNorm(module, size)
        case _ if type(module) in _POOLING:
            return StackedPooling(module)
    ours = type(module).__module__.startswith("spherefed.nn.")
    if (not ours and type(module) not in _CHANNEL_BY_CHANNEL) or any(module.parameters(recurse=False)):
        raise ConfigError(f"a network with a {type(module).__name__} layer cannot be stacked; use stack = 0")
    wide = copy.copy(module)
    wide._modules = {name: child and stacked(child, size) for name, child in module._modules.items()}
    return wide


class StackedLinear(nn.Module):
    """(n, K·i) → (n, K·o)."""

    def __init__(self, layer: nn.Linear, size: int) -> None:
        super().__init__()
        self.in_features = layer.in_features
        self.weight, self.bias = _copies(layer.weight, size), _copies(layer.bias, size)

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.weight is not None
        if inputs.ndim != 2:  # copies lie along the second axis, and the layer mixes the last one
            raise ConfigError(
                f"a Linear layer on inputs of {inputs.ndim} dimensions, {tuple(inputs.shape)}, cannot be stacked; put "
                "nn.Flatten before it, or use stack = 0"
            )
        inputs_Kni = inputs.reshape(len(inputs), -1, self.in_features).transpose(0, 1)
        num = len(inputs_Kni)
        weight_Kio = first(self.weight, num).transpose(1, 2)
        if self.bias is None:
            outputs_Kno = torch.bmm(inputs_Kni, weight_Kio)
        else:
            outputs_Kno = torch.baddbmm(first(self.bias, num)[:, None], inputs_Kni, weight_Kio)
        return outputs_Kno.transpose(0, 1).reshape(len(inputs), -1)


class StackedConv2d(nn.Module):
    """(n, K·i, h, w) → (n, K·o, h', w'): a convolution in K times as many groups."""

    def __init__(self, layer: nn.Conv2d, size: int) -> None:
        super().__init__()
        self.layer = [layer]  # in a list, so that its parameters are not taken for this module's
        self.weight, self.bias = _copies(layer.weight, size), _copies(layer.bias, size)

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.weight is not None
        layer = self.layer[0]
        num = inputs.shape[1] // layer.in_channels
        weight = first(self.weight, num).flatten(0, 1)
        bias = None if self.bias is None else first(self.bias, num).flatten()
        groups = num * layer.groups
        return functional.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, groups)


class StackedGroupNorm(nn.Module):
    """(n, K·c, …) → the same: K times as many groups."""

    def __init__(self, layer: nn.GroupNorm, size: int) -> None:
        super().__init__()
        self.num_groups, self.num_channels, self.eps = layer.num_groups, layer.num_channels, layer.eps
        self.weight, self.bias = _copies(layer.weight, size), _copies(layer.bias, size)

    def forward(self, inputs: Tensor) -> Tensor:
        num = inputs.shape[1] // self.num_channels
        weight = None if self.weight is None else first(self.weight, num).flatten()
        bias = None if self.bias is None else first(self.bias, num).flatten()
        return functional.group_norm(inputs, num * self.num_groups, weight, bias, self.eps)


class StackedPooling(nn.Module):
    """(n, K·c, h, w) → (n, K·c, h', w'): the pooling itself, channel by channel."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != 4:  # copies lie along the second axis, over which the layer pools if there are no channels
            raise ConfigError(
                f"a {type(self.layer).__name__} layer on inputs of {inputs.ndim} dimensions, {tuple(inputs.shape)}, "
                "cannot be stacked; give images a dimension of channels, or use stack = 0"
            )
        outputs: Tensor = self.layer(inputs)
        return outputs


def first(copies: Tensor, num: int) -> Tensor:
    """The first so many; all of them as they are, because a slice has its price when it is differentiated."""
    return copies if num == len(copies) else copies[:num]


def _copies(parameter: Tensor | None, size: int) -> nn.Parameter | None:
    return None if parameter is None else nn.Parameter(parameter.detach().expand(size, *parameter.shape).clone())
