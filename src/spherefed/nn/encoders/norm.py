"""The `NormLayer` of SphereFed, Tables 11-15, and the convolution before it."""

from math import gcd
from typing import Literal

from torch import nn

Norm = Literal["batch", "group"]
"""SphereFed, App. F.1: BatchNorm for MobileNetV2 on CIFAR-100, GroupNorm for everything else."""

MAX_GROUPS = 32


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """A normalization layer with a learned scale and shift per channel.

    >>> [norm_layer("group", channels).num_groups for channels in (16, 24, 512)]
    [16, 8, 32]
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    # Unstated in the paper: the number of groups. 32 (Wu and He 2018), or gcd(32, channels) if that is smaller.
    return nn.GroupNorm(gcd(MAX_GROUPS, channels), channels)


def conv_norm(
    channels: int, width: int, norm: Norm, *, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = False
) -> list[nn.Module]:
    """Convolution and NormLayer; the padding keeps the image size at stride 1.

    Unstated in the paper: the bias (none by default, since the norm adds a shift) and the initialization (torch's
    default).
    """
    padding = kernel // 2
    return [
        nn.Conv2d(channels, width, kernel, stride, padding, groups=groups, bias=bias),
        norm_layer(norm, width),
    ]
