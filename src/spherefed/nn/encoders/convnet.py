"""ConvNet: the paper's small plain network (SphereFed, Table 11)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.nn.encoders.norm import Norm, conv_norm
from spherefed.nn.encoders.shape import image_scale

# SphereFed, Table 11: output channels and stride of each 3×3 convolution.
LAYERS = ((32, 1), (64, 2), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvNet:
    """Seven convolutions and no pooling: l = 2·2·256 = 1024 features at 32×32, and 4·4·256 = 4096 at 64×64.

    Table 11 has no TIN_S, so larger images give more features.
    """

    kind: ClassVar[str] = "convnet"
    norm: Norm = "group"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        image_scale(self.kind, input_shape)
        channels = input_shape[0]
        layers: list[nn.Module] = []
        for width, stride in LAYERS:
            # Unstated in the paper: the padding; 1024 = 2·2·256 features need 1.
            layers += [*conv_norm(channels, width, self.norm, stride=stride), nn.ReLU()]
            channels = width
        return nn.Sequential(*layers, nn.Flatten())
