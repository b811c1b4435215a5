"""A small fully connected encoder for small images such as digits."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from torch import nn

from spherefed.errors import ConfigError
from spherefed.field_types import check_types
from spherefed.nn.size import check_memory
from spherefed.schema import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """Flatten, then Linear and ReLU for each width; the last width is the feature dimension l."""

    kind: ClassVar[str] = "mlp"
    widths: tuple[int, ...] = (128, 64)
    """Outputs of each layer; the last one is the number of features."""

    def __post_init__(self) -> None:
        check_types(self, "model.encoder")
        if not self.widths or min(self.widths) < 1:
            raise ConfigError(f"model.encoder.widths must be positive whole numbers, got {shown(list(self.widths))}")

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        width = prod(input_shape)
        num_parameters = sum((inputs + 1) * outputs for inputs, outputs in pairwise((width, *self.widths)))
        check_memory(num_parameters, "encoder 'mlp' with widths", list(self.widths))
        layers: list[nn.Module] = [nn.Flatten()]
        for next_width in self.widths:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        return nn.Sequential(*layers)
