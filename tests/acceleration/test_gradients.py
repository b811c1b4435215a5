"""Where the gradient comes from: the choice between closed forms and autograd, and that both agree."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spherefed.acceleration.gradients import ModelGradients, gradient_of, model_gradients
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.nn.classifier import Classifier
from spherefed.nn.heads import Learned, Orthonormal


def classifier(*, learned: bool = True, normed: bool = False) -> Classifier:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.GroupNorm(1, 5) if normed else nn.ReLU())
    head = (Learned() if learned else Orthonormal()).build(3, 5, 0)
    return Classifier(encoder, head, num_classes=3, normalize=False)


def gradients(model: Classifier, **settings: Any) -> ModelGradients:
    return model_gradients(model, {n: p for n, p in model.named_parameters() if p.requires_grad}, **settings)


INPUTS, LABELS = torch.randn(7, 1, 2, 3, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 3


def by_module(model: Classifier, loss: Loss, trained: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """By the module itself and `backward`."""
    model.zero_grad()
    value = loss(model(INPUTS), LABELS)
    value.backward()
    return value.detach(), [torch.zeros_like(t) if t.grad is None else t.grad for t in trained]


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(scale=3.0), MeanSquaredError()], ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_the_chosen_gradient_is_that_of_the_module(learned: bool, normed: bool, loss: Loss) -> None:
    model = classifier(learned=learned, normed=normed)
    chosen = gradients(model)
    assert (chosen.chain is None) == normed
    value, found = chosen.value_and_grad(loss, chosen.params, None)(INPUTS, LABELS, None)
    expected_value, expected = by_module(model, loss, list(chosen.params.values()))
    assert torch.equal(value, expected_value)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))
    assert len(found) == len(chosen.params) > 0


class OwnLoss(CrossEntropy):
    """A loss of the user's own, of which the closed form knows nothing."""

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().__call__(scores, labels)


def test_a_loss_that_the_closed_form_does_not_know_is_left_to_autograd() -> None:
    model = classifier()
    chosen = gradients(model)
    value, found = chosen.value_and_grad(OwnLoss(), chosen.params, None)(INPUTS, LABELS, None)
    expected_value, expected = by_module(model, OwnLoss(), list(chosen.params.values()))
    assert torch.equal(value, expected_value)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_a_part_is_trained_by_autograd_with_its_own_gradient() -> None:
    model = classifier()
    chosen = gradients(model)
    part = {"head.weight": chosen.params["head.weight"]}
    value, found = chosen.value_and_grad(CrossEntropy(), part, None)(INPUTS, LABELS, None)
    expected_value, expected = by_module(model, CrossEntropy(), list(part.values()))
    assert torch.equal(value, expected_value)
    assert [torch.equal(f, e) for f, e in zip(found, expected, strict=True)] == [True]


def test_a_penalty_is_differentiated_but_not_reported() -> None:
    model = classifier()
    chosen = gradients(model)
    plain, _ = chosen.value_and_grad(CrossEntropy(), chosen.params, None)(INPUTS, LABELS, None)
    penalty = chosen.value_and_grad(CrossEntropy(), chosen.params, lambda x, z: 5.0 * z.square().sum() + x.sum())
    value, found = penalty(INPUTS, LABELS, None)
    assert torch.equal(value, plain)
    model.zero_grad()
    features = model.features(INPUTS)
    (CrossEntropy()(model.head(features), LABELS) + 5.0 * features.square().sum()).backward()
    for parameter, gradient in zip(chosen.params.values(), found, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(gradient, parameter.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{"compile_for": 7}, {"precision": "bf16"}])
def test_a_compiled_or_low_precision_pass_leaves_the_closed_form(settings: dict[str, Any]) -> None:
    assert gradients(classifier(), **settings).chain is None


def test_what_the_value_does_not_depend_on_has_a_gradient_of_zero() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    found = gradient_of((used * 3).sum(), [used, unused])
    assert [gradient.tolist() for gradient in found] == [[3.0, 3.0], [0.0, 0.0, 0.0]]
