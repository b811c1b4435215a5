"""VGG13 (Simonyan and Zisserman 2015) with normalization, as in SphereFed, Table 12."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.nn.encoders.norm import Norm, conv_norm
from spherefed.nn.encoders.shape import image_scale

# SphereFed, Table 12: five stages of two 3×3 convolutions. NormLayer(256) after 512 channels is a misprint.
STAGES = (64, 128, 256, 512, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class VGG13:
    """Ten convolutions, max pooling after every second one: l = 512 features."""

    kind: ClassVar[str] = "vgg13"
    norm: Norm = "group"
    """GroupNorm or BatchNorm after each convolution."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        scale = image_scale(self.kind, input_shape)
        channels = input_shape[0]
        layers: list[nn.Module] = []
        for width in STAGES:
            for _ in range(2):
                # Unstated in the paper: the bias; the convolutions of VGG have one.
                layers += [*conv_norm(channels, width, self.norm, bias=True), nn.ReLU()]
                channels = width
            # Deviation: Table 12 lacks the fifth max pooling; without it there would be 2·2·512 = 2048 features.
            layers.append(nn.MaxPool2d(2))
        if scale > 1:
            layers.append(nn.MaxPool2d(scale))
        # AvgPool2d(k=1, s=1) of Table 12 is the identity.
        return nn.Sequential(*layers, nn.Flatten())
