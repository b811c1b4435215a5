"""A vision transformer of the transformers library as a frozen encoder; tests use a small one with random weights."""

from typing import Any

from torch import Tensor, nn


class PooledTransformer(nn.Module):
    """With a real checkpoint: `self.model = transformers.AutoModel.from_pretrained(checkpoint)`."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTModel

        self.model = ViTModel(ViTConfig(**config))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(pixel_values=images).pooler_output
        return features
