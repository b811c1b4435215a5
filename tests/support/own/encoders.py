"""A user's own encoders: a class, a dataclass, and functions that return a module."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn


class TinyNet(nn.Module):
    """Flatten, one layer, tanh."""

    def __init__(self, inputs: int = 64, width: int = 16) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x.flatten(1)))


@dataclass(frozen=True)
class TinyConfig:
    """The same net as a component with a `build` of its own."""

    width: int = 16

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        return TinyNet(prod(input_shape), self.width)


def sized(input_shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """A function that asks for the shape of the inputs."""
    return TinyNet(prod(input_shape), width)


def create_model(model_name: str, pretrained: bool = False, in_chans: int = 3, **options: Any) -> nn.Module:
    """The signature of timm.create_model; num_classes = 0 asks for features."""
    assert model_name == "tiny"
    assert not pretrained
    assert options == {"num_classes": 0}
    return nn.Sequential(nn.Conv2d(in_chans, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


class TinyTransformer(nn.Module):
    """A randomly initialised vision transformer of the transformers library; its pooled output are the features."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTModel

        config = ViTConfig(
            hidden_size=hidden,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=2 * hidden,
            image_size=8,
            patch_size=4,
            num_channels=1,
        )
        self.model = ViTModel(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=x).pooler_output


def not_a_module() -> int:
    return 3


NUMBER = 3


class Scaled(nn.Module):
    """Flattened pixels times a factor, which is a weight."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * images.flatten(1)
