"""A classifier taken apart into functions computes the same bits as the module."""

import pytest
import torch
from torch import Tensor, nn

from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet, Mlp
from spherefed.nn.heads import Learned, Orthonormal
from spherefed.nn.straight import straight


def classifier(encoder: nn.Module, dim: int, *, learned: bool) -> Classifier:
    head = (Learned() if learned else Orthonormal()).build(3, dim, 0)
    return Classifier(encoder, head, num_classes=3, normalize=not learned)


class Doubled(nn.Linear):
    """A layer that only looks like a known one."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(
    ("encoder", "dim"),
    [
        (Mlp(widths=(8, 5)).build((1, 4, 4)), 5),
        (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(16, 6, bias=False), nn.ReLU())), 6),
        (nn.Sequential(nn.Flatten(), Doubled(16, 6)), 6),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()), 6),
    ],
)
def test_the_straight_pass_gives_the_module_s_bits_and_gradients(encoder: nn.Module, dim: int, learned: bool) -> None:
    model = classifier(encoder, dim, learned=learned)
    inputs, params = torch.randn(7, 1, 4, 4), [p for p in model.parameters() if p.requires_grad]
    features, scores = straight(model)(inputs)
    assert torch.equal(features, model.features(inputs))
    assert torch.equal(scores, model(inputs))
    for got, expected in zip(
        torch.autograd.grad(scores.square().sum(), params),
        torch.autograd.grad(model(inputs).square().sum(), params),
        strict=True,
    ):
        assert torch.equal(got, expected)


def test_hooks_are_heard() -> None:
    encoder = Mlp(widths=(5,)).build((1, 4, 4))
    heard: list[Tensor] = []
    encoder[1].register_forward_hook(lambda _, __, output: heard.append(output))  # type: ignore[index]
    straight(classifier(encoder, 5, learned=True))(torch.zeros(2, 1, 4, 4))
    assert heard


def test_networks_with_other_layers_are_called_as_they_are() -> None:
    model = classifier(ConvNet().build((3, 32, 32)), 1024, learned=True)
    inputs = torch.randn(2, 3, 32, 32)
    assert torch.equal(straight(model)(inputs)[1], model(inputs))
