"""A classifier taken apart computes the same bits as the module, and differentiates itself as autograd does."""

import pytest
import torch
from torch import Tensor, nn

from spherefed.acceleration.chain import Chain, _score_gradient, chain_of, plain_forward
from spherefed.client.training import LocalTraining
from spherefed.experiment import Model
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.nn.classifier import Classifier
from spherefed.nn.encoders import ConvNet, Mlp
from spherefed.nn.heads import Learned, Orthonormal
from spherefed.server.federation import federate
from support.small import assembled, in_process


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
    features, scores = plain_forward(model)(inputs)
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
    plain_forward(classifier(encoder, 5, learned=True))(torch.zeros(2, 1, 4, 4))
    assert heard


def test_networks_with_other_layers_are_called_as_they_are() -> None:
    model = classifier(ConvNet().build((3, 32, 32)), 1024, learned=True)
    inputs = torch.randn(2, 3, 32, 32)
    assert torch.equal(plain_forward(model)(inputs)[1], model(inputs))


LOSSES = [CrossEntropy(), CrossEntropy(scale=10.0), MeanSquaredError()]
CHAINS = [
    (nn.Flatten(), 16),
    (Mlp(widths=(8, 5)).build((1, 4, 4)), 5),
    (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(16, 6, bias=False), nn.ReLU())), 6),
    (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 7)), 7),  # a Linear over rows of images
]


def both_ways(model: Classifier, inputs: Tensor, loss: Loss) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradient by the chain, and by autograd through the module."""
    chain, labels = chain_of(model), torch.arange(len(inputs)) % 3
    assert chain is not None
    trained = [p for p in model.parameters() if p.requires_grad]
    assert [*map(id, chain.trained)] == [*map(id, trained)]
    value, gradient = chain.value_and_grad(loss, inputs, labels, None)
    expected = loss(model(inputs), labels)
    assert not any(tensor.requires_grad for tensor in (value, *gradient))
    if not trained:
        return [value], [expected.detach()]
    return [value, *gradient], [expected.detach(), *torch.autograd.grad(expected, trained)]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize(("encoder", "dim"), CHAINS)
def test_a_chain_has_autograd_s_bits(encoder: nn.Module, dim: int, loss: Loss) -> None:
    found, expected = both_ways(classifier(encoder, dim, learned=True), torch.randn(7, 1, 4, 4), loss)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize(("encoder", "dim"), CHAINS)
def test_a_chain_on_the_sphere_has_autograd_s_gradient(encoder: nn.Module, dim: int, loss: Loss) -> None:
    model = classifier(encoder, dim, learned=False).double()
    found, expected = both_ways(model, torch.randn(7, 1, 4, 4, dtype=torch.float64), loss)
    for f, e in zip(found, expected, strict=True):
        assert torch.allclose(f, e, rtol=1e-12, atol=1e-14)
    model.float()


def test_features_of_no_length_have_autograd_s_gradient() -> None:
    model = classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 6, bias=False)), 6, learned=False).double()
    inputs = torch.randn(4, 1, 4, 4, dtype=torch.float64)
    inputs[1], inputs[2] = 0.0, inputs[2] * 1e-14
    for f, e in zip(*both_ways(model, inputs, MeanSquaredError()), strict=True):
        assert torch.allclose(f, e, rtol=1e-9, atol=0)


def test_a_part_that_is_not_trained_has_no_gradient() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 6))
    encoder[1].requires_grad_(False)
    encoder[3].weight.requires_grad_(False)
    found, expected = both_ways(classifier(encoder, 6, learned=True), torch.randn(5, 1, 4, 4), CrossEntropy())
    assert len(found) == 3  # the loss, one bias, the head
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def _tied() -> nn.Module:
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


def _watched_gradient() -> nn.Module:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
    encoder[1].weight.register_hook(lambda gradient: 2 * gradient)
    return encoder


def _watched_layer() -> nn.Module:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
    encoder[1].register_full_backward_hook(lambda *_: None)
    return encoder


@pytest.mark.parametrize(
    "encoder", [_tied(), _watched_gradient(), _watched_layer(), nn.Sequential(nn.Flatten(), Doubled(16, 16))]
)
def test_what_only_autograd_does_justice_to_is_left_to_it(encoder: nn.Module) -> None:
    assert chain_of(classifier(encoder, 16, learned=True)) is None


def test_a_bench_trains_by_its_chain_only_where_all_of_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    gradient = Chain.value_and_grad
    monkeypatch.setattr(Chain, "value_and_grad", lambda *given: (taken.append(1), gradient(*given))[1])
    whole = assembled(model=Model(encoder=Mlp(widths=(8,))), calibration=None, rounds=1)
    list(federate(in_process(whole), whole.initial(), whole.plan()))
    assert taken
    taken.clear()
    local = LocalTraining(lr=0.1, epochs=1, head_epochs=1)
    parts = assembled(model=Model(encoder=Mlp(widths=(8,))), calibration=None, rounds=1, local=local)
    list(federate(in_process(parts), parts.initial(), parts.plan()))
    assert not taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_closed_form_of_a_loss_has_autograds_value_and_gradient_to_the_bit(loss: Loss, dtype: torch.dtype) -> None:
    leaf, labels = torch.randn(7, 4, dtype=dtype).requires_grad_(), torch.arange(7) % 4
    expected = loss(leaf, labels)
    value, gradient = _score_gradient(loss, leaf.detach(), labels, None)
    assert torch.equal(value, expected.detach())
    assert torch.equal(gradient, torch.autograd.grad(expected, leaf)[0])


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_closed_form_for_a_group_weighs_each_clients_examples(loss: Loss) -> None:
    leaf, labels = torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_(), torch.tensor([[0, 1, 2], [3, 3, 0]])
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)  # 0: padding of a short batch
    each = [
        sum(w * loss(s[None], y[None]) for s, y, w in zip(*client, strict=True))
        for client in zip(leaf, labels, weights, strict=True)
    ]
    values, gradient = _score_gradient(loss, leaf.detach(), labels, weights)
    assert torch.allclose(values, torch.stack(each).detach(), rtol=1e-12)
    assert torch.allclose(gradient, torch.autograd.grad(sum(each), leaf)[0], rtol=1e-12, atol=1e-15)
    assert not gradient[1, 2].any()
