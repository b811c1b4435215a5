"""A small fully connected encoder for small images, digits above all."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn

from spherefed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """Flatten, then Linear + ReLU for every width; the last width is the feature dimension l."""

    kind: ClassVar[str] = "mlp"
    widths: tuple[int, ...] = (128, 64)

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"model.encoder.widths must be positive whole numbers, got {list(self.widths)}")

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for next_width in self.widths:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        return nn.Sequential(*layers)
