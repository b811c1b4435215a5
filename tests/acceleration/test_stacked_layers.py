"""Layers that hold a copy of their parameters for every client, against the layers themselves."""

import pytest
import torch
from torch import nn

from spherefed.acceleration.stacked_layers import stacked
from spherefed.acceleration.stacked_model import StackedModel
from spherefed.client.local_model import LocalModel
from spherefed.errors import ConfigError
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import VGG13, ConvNet, Encoder, Mlp, MobileNetV2, ResNet18, SENet18, SmallNet
from spherefed.nn.heads import Learned

ENCODERS = [Mlp(), SmallNet(norm="group"), ConvNet(), VGG13(), ResNet18(), SENet18(), MobileNetV2(norm="group")]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.kind)
def test_copies_side_by_side_see_what_each_sees_alone(encoder: Encoder) -> None:
    torch.manual_seed(0)
    nets = [encoder.build((3, 32, 32)).double() for _ in range(3)]
    wide = stacked(nets[0], size=4)
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            for place, net in enumerate(nets):
                parameter[place] = net.get_parameter(name)
        inputs = torch.randn(2, 3, 3, 32, 32, dtype=torch.float64)
        outputs = wide(inputs.flatten(1, 2)).view(2, 3, -1)
        for place, net in enumerate(nets):
            assert torch.allclose(outputs[:, place], net(inputs[:, place]), rtol=1e-10, atol=1e-10)


def test_models_with_batch_statistics_or_unknown_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="BatchNorm2d"):
        stacked(SmallNet(norm="batch").build((1, 8, 8)), 2)
    with pytest.raises(ConfigError, match="Dropout"):
        stacked(nn.Sequential(nn.Linear(8, 8), nn.Dropout()), 2)


def test_a_parameter_in_two_places_is_refused() -> None:
    layer = nn.Linear(16, 16)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), layer, nn.ReLU(), layer)
    head = Learned().build(10, 16, 0)
    local_model = LocalModel(Classifier(encoder, head, num_classes=10, normalize=False))
    with pytest.raises(ConfigError, match="every parameter once"):
        StackedModel(local_model.classifier, 2)
