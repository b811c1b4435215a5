"""No encoder: the inputs themselves are the features, for data that a feature map or a linear head can separate."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True, slots=True)
class Flatten:
    """Inputs as rows; without parameters, so `model.frozen = true` is the only use."""

    kind: ClassVar[str] = "flatten"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Flatten()
