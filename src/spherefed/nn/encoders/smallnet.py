"""SmallNet, not from the paper: small enough to train on one core, for 8×8 digits and 28×28 Fashion-MNIST."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from spherefed.errors import ConfigError
from spherefed.nn.encoders.norm import Norm, conv_norm

MIN_SIDE = 3
LARGE_SIDE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallNet:
    """Three convolutions with norms, then average pooling to 2×2: l = 2·2·64 = 256 features."""

    kind: ClassVar[str] = "smallnet"
    norm: Norm = "group"
    """GroupNorm or BatchNorm after each convolution."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        if len(input_shape) != 3 or input_shape[0] < 1 or min(input_shape[1:]) < MIN_SIDE:
            raise ConfigError(
                f"encoder {self.kind!r} needs inputs of shape (channels, height, width), "
                f"at least {MIN_SIDE}×{MIN_SIDE}, got {input_shape}; use encoder 'mlp'"
            )
        channels, height, width = input_shape
        # The first convolution halves large images: otherwise a training step at 28×28 takes more than twice as long.
        first_stride = 2 if min(height, width) >= LARGE_SIDE else 1
        layers: list[nn.Module] = []
        for out_channels, stride in ((16, first_stride), (32, 2), (64, 1)):
            layers += [*conv_norm(channels, out_channels, self.norm, stride=stride), nn.ReLU()]
            channels, height, width = out_channels, -(-height // stride), -(-width // stride)
        return nn.Sequential(*layers, _pool_to_2x2(height, width), nn.Flatten())


def _pool_to_2x2(height: int, width: int) -> nn.Module:
    """Equals AdaptiveAvgPool2d(2) for this input size, but its gradient is deterministic on GPUs."""
    return nn.AvgPool2d((height - height // 2, width - width // 2), stride=(height // 2, width // 2))
