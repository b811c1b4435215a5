"""Encoders by name: frozen dataclasses. `build(input_shape)` returns an nn.Module that computes (n, l) features."""

from spherefed.nn.encoders.convnet import ConvNet
from spherefed.nn.encoders.efficientnet_lite import EfficientNetLite0
from spherefed.nn.encoders.flatten import Flatten
from spherefed.nn.encoders.in_memory import InMemoryEncoder, structure_digest
from spherefed.nn.encoders.mlp import Mlp
from spherefed.nn.encoders.mobilenet import MobileNetV2
from spherefed.nn.encoders.norm import Norm
from spherefed.nn.encoders.own import CallableEncoder, OwnEncoder
from spherefed.nn.encoders.resnet import ResNet18, SENet18
from spherefed.nn.encoders.smallnet import SmallNet
from spherefed.nn.encoders.vgg import VGG13
from spherefed.nn.layers import has_batch_norm

BuiltInEncoder = (
    Flatten | Mlp | SmallNet | ConvNet | VGG13 | ResNet18 | SENet18 | MobileNetV2 | EfficientNetLite0 | InMemoryEncoder
)
Encoder = BuiltInEncoder | CallableEncoder | OwnEncoder

__all__ = [
    "VGG13",
    "CallableEncoder",
    "ConvNet",
    "EfficientNetLite0",
    "Encoder",
    "Flatten",
    "InMemoryEncoder",
    "Mlp",
    "MobileNetV2",
    "Norm",
    "OwnEncoder",
    "ResNet18",
    "SENet18",
    "SmallNet",
    "has_batch_norm",
    "structure_digest",
]
