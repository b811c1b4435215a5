"""ResNet18 (He et al. 2016) and SENet18 (Hu et al. 2018) for small images, as in SphereFed, Tables 15 and 13.

Both consist of the same basic blocks; SENet18 adds squeeze-and-excitation to each block.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from spherefed.nn.encoders.norm import Norm, conv_norm
from spherefed.nn.encoders.shape import image_scale

SE_REDUCTION = 16
"""Unstated in the paper: the reduction ratio of squeeze-and-excitation (Hu et al. 2018: 16)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNet18:
    """Eight basic blocks in four stages: l = 512 features (SphereFed, Table 15)."""

    kind: ClassVar[str] = "resnet18"
    norm: Norm = "group"
    """GroupNorm or BatchNorm after each convolution."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        return _residual_net(input_shape, image_scale(self.kind, input_shape), self.norm, squeeze=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SENet18:
    """ResNet18 with squeeze-and-excitation in every block: l = 512 features (SphereFed, Table 13)."""

    kind: ClassVar[str] = "senet18"
    norm: Norm = "group"
    """GroupNorm or BatchNorm after each convolution."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        return _residual_net(input_shape, image_scale(self.kind, input_shape), self.norm, squeeze=True)


def _residual_net(input_shape: tuple[int, ...], scale: int, norm: Norm, *, squeeze: bool) -> nn.Module:
    layers: list[nn.Module] = [*conv_norm(input_shape[0], 64, norm), nn.ReLU()]
    channels = 64
    # Width and first stride of B1 … B4. NormLayer(256) after 512 channels in B4 of the tables is a misprint.
    for width, stride in ((64, scale), (128, 2), (256, 2), (512, 2)):
        layers.append(BasicBlock(channels, width, stride, norm, squeeze=squeeze))
        layers.append(BasicBlock(width, width, 1, norm, squeeze=squeeze))
        channels = width
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten())


class BasicBlock(nn.Module):
    """relu(F(x) + shortcut(x)), where F is two 3×3 convolutions.

    Unstated in the paper: the shortcuts; its tables list only layers. If a block changes the shape, its shortcut is a
    1×1 convolution with a norm (He et al. 2016, option B), otherwise the identity.
    """

    def __init__(self, channels: int, width: int, stride: int, norm: Norm, *, squeeze: bool) -> None:
        super().__init__()
        # Deviation: the tables list the second ReLU before the excitation. Here it follows the sum, as in He et al. and
        # Hu et al.; otherwise a block could only increase the values of its shortcut.
        self.residual = nn.Sequential(
            *conv_norm(channels, width, norm, stride=stride),
            nn.ReLU(),
            *conv_norm(width, width, norm),
            *([SqueezeExcitation(width)] if squeeze else []),
        )
        keeps_shape = stride == 1 and channels == width
        self.shortcut = (
            nn.Identity() if keeps_shape else nn.Sequential(*conv_norm(channels, width, norm, kernel=1, stride=stride))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.relu(self.residual(inputs) + self.shortcut(inputs))


class SqueezeExcitation(nn.Module):
    """x · σ(W₂ relu(W₁ mean(x) + b₁) + b₂), one factor per image and channel (Hu et al. 2018, Eq. 2-4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = channels // SE_REDUCTION
        self.gate = nn.Sequential(nn.Linear(channels, squeezed), nn.ReLU(), nn.Linear(squeezed, channels), nn.Sigmoid())

    def forward(self, inputs: Tensor) -> Tensor:
        factors: Tensor = self.gate(inputs.mean(dim=(2, 3)))
        return inputs * factors[:, :, None, None]
