"""Resizing inside an encoder: pretrained weights expect images of a size of their own."""

from torch import Tensor, nn
from torch.nn import functional

from spherefed.errors import ConfigError


class Resized(nn.Module):
    """Images resized to a square of `resize` pixels, then the module."""

    def __init__(self, module: nn.Module, resize: int) -> None:
        super().__init__()
        self.module = module
        self.resize = resize

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.module(resized(images, self.resize))
        return features


def resized(images: Tensor, resize: int) -> Tensor:
    """(n, c, h, w) → (n, c, resize, resize) by bicubic interpolation, as EfficientNet and most of timm were trained.

    Images that become smaller are low-pass filtered first; images that have this size already are returned as they are.
    """
    size = (resize, resize)
    if images.shape[2:] == size:
        return images
    smaller = min(images.shape[2:]) > resize
    return functional.interpolate(images, size=size, mode="bicubic", align_corners=False, antialias=smaller)


def check_resize(kind: str, resize: object, input_shape: tuple[int, ...]) -> None:
    """Raise a ConfigError unless images of this shape can be resized to this many pixels."""
    if type(resize) is not int or resize < 1:
        raise ConfigError(f"model.encoder.resize must be a positive whole number of pixels, got {resize!r}")
    if len(input_shape) != 3:
        raise ConfigError(
            f"model.encoder.resize of encoder {kind!r} needs images of shape (channels, height, width), "
            f"got {input_shape}"
        )
