"""ConvNet, a small network without shortcuts (SphereFed, Table 11)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.nn.encoders.norm import Norm, conv_norm
from spherefed.nn.encoders.shape import check_image

# SphereFed, Table 11: output channels and stride of each 3×3 convolution.
LAYERS = ((32, 1), (64, 2), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvNet:
    """Seven convolutions and no pooling: l = 2·2·256 = 1024 features at 32×32, and 4·4·256 = 4096 at 64×64.

    Table 11 does not use TIN_S, so larger images give more features, and smaller ones (16×16: 256) fewer.
    """

    kind: ClassVar[str] = "convnet"
    norm: Norm = "group"
    """GroupNorm or BatchNorm after each convolution."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        check_image(self.kind, input_shape, sides=(16, 32, 64))
        channels = input_shape[0]
        layers: list[nn.Module] = []
        for width, stride in LAYERS:
            # Unstated in the paper: the padding. It must be 1 to give 2·2·256 = 1024 features.
            layers += [*conv_norm(channels, width, self.norm, stride=stride), nn.ReLU()]
            channels = width
        return nn.Sequential(*layers, nn.Flatten())
