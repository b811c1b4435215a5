"""Encoders by name: frozen dataclasses whose `build(input_shape)` makes an nn.Module from inputs to (n, l) features."""

from spherefed.nn.encoders.convnet import ConvNet
from spherefed.nn.encoders.mlp import Mlp
from spherefed.nn.encoders.mobilenet import MobileNetV2
from spherefed.nn.encoders.norm import Norm, has_batch_statistics
from spherefed.nn.encoders.resnet import ResNet18, SENet18
from spherefed.nn.encoders.smallnet import SmallNet
from spherefed.nn.encoders.vgg import VGG13

Encoder = Mlp | SmallNet | ConvNet | VGG13 | ResNet18 | SENet18 | MobileNetV2

__all__ = [
    "VGG13",
    "ConvNet",
    "Encoder",
    "Mlp",
    "MobileNetV2",
    "Norm",
    "ResNet18",
    "SENet18",
    "SmallNet",
    "has_batch_statistics",
]
