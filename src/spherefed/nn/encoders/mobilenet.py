"""MobileNetV2 (Sandler et al. 2018) for small images, as in SphereFed, Table 14."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from spherefed.nn.encoders.norm import Norm, conv_norm
from spherefed.nn.encoders.shape import image_scale


@dataclass(frozen=True, kw_only=True, slots=True)
class MobileNetV2:
    """Seventeen inverted residual blocks in seven stages: l = 1280 features."""

    kind: ClassVar[str] = "mobilenetv2"
    norm: Norm = "batch"
    """The paper's choice for CIFAR-100; for TinyImageNet it is "group"."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        scale = image_scale(self.kind, input_shape)
        # SphereFed, Table 14, B1 … B7: expansion, output channels, blocks, stride of the first block.
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, scale),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        layers: list[nn.Module] = [*conv_norm(input_shape[0], 32, self.norm), nn.ReLU()]
        channels = 32
        for expansion, width, num_blocks, first_stride in stages:
            for stride in (first_stride, *(1 for _ in range(num_blocks - 1))):
                layers.append(InvertedResidual(channels, width, expansion, stride, self.norm))
                channels = width
        layers += [*conv_norm(channels, 1280, self.norm, kernel=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten())


class InvertedResidual(nn.Module):
    """1×1 expansion, 3×3 depthwise convolution, 1×1 projection; at stride 1 the inputs are added.

    Unstated in the paper: the shortcuts; its table lists only layers. At stride 1 with a change of width, the shortcut
    is a 1×1 convolution with a norm (Sandler et al. 2018 have none there). The first block has a 1×1 convolution
    although its expansion is 1. Both follow the CIFAR networks whose layers the table lists.
    """

    def __init__(self, channels: int, width: int, expansion: int, stride: int, norm: Norm) -> None:
        super().__init__()
        hidden = expansion * channels
        self.residual = nn.Sequential(
            *conv_norm(channels, hidden, norm, kernel=1),
            nn.ReLU(),
            *conv_norm(hidden, hidden, norm, stride=stride, groups=hidden),
            nn.ReLU(),
            # Deviation: Table 14 lists a ReLU after this; MobileNetV2 is defined by linear bottlenecks.
            *conv_norm(hidden, width, norm, kernel=1),
        )
        self.shortcut: nn.Module | None = None
        if stride == 1:
            changes_width = channels != width
            self.shortcut = (
                nn.Sequential(*conv_norm(channels, width, norm, kernel=1)) if changes_width else nn.Identity()
            )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.residual(inputs)
        return outputs if self.shortcut is None else outputs + self.shortcut(inputs)
