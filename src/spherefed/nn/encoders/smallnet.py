"""SmallNet: ours, not the paper's. Small enough to train on one core: 8×8 digits, 28×28 Fashion-MNIST."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.errors import ConfigError
from spherefed.nn.encoders.norm import Norm, conv_norm

MIN_SIDE = 3
LARGE_SIDE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallNet:
    """Three normalised convolutions, averaged over the four quarters of the image: l = 2·2·64 = 256 features."""

    kind: ClassVar[str] = "smallnet"
    norm: Norm = "group"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        if len(input_shape) != 3 or input_shape[0] < 1 or min(input_shape[1:]) < MIN_SIDE:
            raise ConfigError(
                f"encoder {self.kind!r} takes inputs of shape (channels, height, width), "
                f"at least {MIN_SIDE}×{MIN_SIDE}, got {input_shape}; use encoder 'mlp'"
            )
        channels, height, width = input_shape
        # Large images are halved at once: at 28×28 a training step would otherwise take more than twice as long.
        first_stride = 2 if min(height, width) >= LARGE_SIDE else 1
        layers: list[nn.Module] = []
        for out_channels, stride in ((16, first_stride), (32, 2), (64, 1)):
            layers += [*conv_norm(channels, out_channels, self.norm, stride=stride), nn.ReLU()]
            channels, height, width = out_channels, -(-height // stride), -(-width // stride)
        return nn.Sequential(*layers, _quarters(height, width), nn.Flatten())


def _quarters(height: int, width: int) -> nn.Module:
    """AdaptiveAvgPool2d(2) for a size known beforehand: on GPUs the adaptive one's gradient is not deterministic."""
    return nn.AvgPool2d((height - height // 2, width - width // 2), stride=(height // 2, width // 2))
