"""What is known of layers by their class, against what the layers do."""

import pytest
import torch
from torch import nn

from spherefed.nn.encoders import ConvNet, Encoder, Mlp, MobileNetV2, ResNet18, SENet18, SmallNet
from spherefed.nn.frozen import Frozen
from spherefed.nn.layers import frozen_tensors, prefers_channels_last, uses_randomness
from spherefed.tensors import digest

IMAGE, ROW = (4, 8, 6, 6), (4, 8)
DETERMINISTIC = [
    (nn.Identity(), ROW),
    (nn.Flatten(), IMAGE),
    (nn.Linear(8, 3), ROW),
    (nn.Conv1d(8, 3, 3), (4, 8, 6)),
    (nn.Conv2d(8, 3, 3), IMAGE),
    (nn.BatchNorm1d(8), ROW),
    (nn.BatchNorm2d(8), IMAGE),
    (nn.GroupNorm(2, 8), IMAGE),
    (nn.LayerNorm(8), ROW),
    (nn.ReLU(), ROW),
    (nn.ReLU6(), ROW),
    (nn.GELU(), ROW),
    (nn.SiLU(), ROW),
    (nn.Sigmoid(), ROW),
    (nn.Tanh(), ROW),
    (nn.MaxPool2d(2), IMAGE),
    (nn.AvgPool2d(2), IMAGE),
    (nn.AdaptiveAvgPool2d(1), IMAGE),
    (nn.AdaptiveMaxPool2d(1), IMAGE),
]
RANDOM = [(nn.Dropout(), ROW), (nn.Dropout2d(), IMAGE), (nn.RReLU(), ROW), (nn.FractionalMaxPool2d(2, 3), IMAGE)]


def draws(layer: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a training pass moves torch's generator."""
    inputs = torch.randn(shape)
    before = torch.random.get_rng_state()
    layer.train()(inputs)
    return not torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("layer", "shape"), DETERMINISTIC + RANDOM, ids=lambda value: type(value).__name__)
def test_a_layer_is_said_to_draw_random_numbers_if_it_does(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert uses_randomness(nn.Sequential(nn.Identity(), layer)) == draws(layer, shape)


@pytest.mark.parametrize("encoder", [ConvNet(), Mlp(), MobileNetV2(), ResNet18(), SENet18(), SmallNet()])
def test_no_encoder_of_the_package_draws_random_numbers(encoder: Encoder) -> None:
    assert not uses_randomness(encoder.build((3, 32, 32)))


class Unknown(nn.Module):
    """A layer of the user's own, of which nothing is known."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


class OwnLinear(nn.Linear):
    """A subclass may do anything that its base does not."""


@pytest.mark.parametrize("layer", [Unknown(), OwnLinear(2, 2)])
def test_an_unknown_layer_is_taken_to_draw_random_numbers(layer: nn.Module) -> None:
    assert uses_randomness(nn.Sequential(nn.Linear(2, 2), layer))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)], True),
        ([nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)], False),
        ([nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(4, 8)], True),  # depthwise
        ([nn.Conv2d(8, 8, 3, groups=2)], False),  # grouped, not depthwise
        ([nn.Conv2d(1, 8, 3)], False),  # one channel in one group is not depthwise
        ([nn.Linear(8, 8), nn.BatchNorm1d(8)], False),
    ],
)
def test_channels_last_is_preferred_with_batchnorm_or_depthwise_convolutions(
    layers: list[nn.Module], expected: bool
) -> None:
    assert prefers_channels_last(nn.Sequential(*layers)) == expected


def test_frozen_are_frozen_modules_with_their_buffers_and_parameters_without_a_gradient() -> None:
    norm, plain = nn.BatchNorm1d(4), nn.Linear(4, 4)
    plain.weight.requires_grad_(False)
    assert set(frozen_tensors(nn.Sequential(Frozen(norm), plain))) == {"1.weight"} | {
        f"0.module.{name}" for name in norm.state_dict()
    }


@pytest.mark.parametrize("encoder", [SmallNet(norm="batch"), MobileNetV2()], ids=["smallnet", "mobilenet"])
def test_the_digest_of_a_frozen_built_in_encoder_is_that_of_its_tensors(encoder: Encoder) -> None:
    built = encoder.build((3, 32, 32))
    assert frozen_tensors(built) == {}
    tensors = {f"module.{name}": tensor for name, tensor in built.state_dict().items()}
    assert digest(frozen_tensors(Frozen(built))) == digest(tensors)
