"""The classifier, and the two ways to federate a network of the user's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from spherefed.calibration.ffc import statistics
from spherefed.errors import ConfigError, ModelError
from spherefed.losses import sphere_mse
from spherefed.nn.classifier import Classifier, from_classifier, hyperspherical
from spherefed.nn.heads import FixedRandom, Learned, Orthonormal


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_hyperspherical_scores_are_cosines_to_the_rows_of_the_head() -> None:
    encoder = nn.Linear(8, 16)
    model = hyperspherical(encoder, 5, dim=16)
    x = inputs(20, 8)
    with torch.no_grad():
        scores, features = model(x), encoder(x)
    for i in range(20):
        for c in range(5):
            cosine = nn.functional.cosine_similarity(features[i], model.head.weight[c], dim=0)
            assert float(scores[i, c] - cosine) == pytest.approx(0, abs=1e-6)


def test_hyperspherical_removes_no_layer() -> None:
    encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    before = list(encoder)
    model = hyperspherical(encoder, 10)
    assert model.encoder is encoder
    assert list(encoder) == before
    assert model(inputs(3, 8)).shape == (3, 10)


def test_the_dimension_is_found_alike_from_an_argument_an_example_and_the_first_batch() -> None:
    x = inputs(4, 8)
    given = hyperspherical(nn.Linear(8, 16), 5, dim=16, seed=3)
    shown = hyperspherical(nn.Linear(8, 16), 5, example=x, seed=3)
    lazy = hyperspherical(nn.Linear(8, 16), 5, seed=3)
    assert not given.head.is_uninitialized
    assert not shown.head.is_uninitialized
    assert lazy.head.is_uninitialized
    lazy(x)
    assert not lazy.head.is_uninitialized
    assert torch.equal(given.head.weight, shown.head.weight)
    assert torch.equal(given.head.weight, lazy.head.weight)


def test_an_example_leaves_running_statistics_and_modes_alone() -> None:
    frozen = nn.BatchNorm1d(16).eval()
    encoder = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), frozen, nn.Dropout(0.5))
    encoder.train()
    frozen.eval()
    before = copy.deepcopy(encoder.state_dict())
    hyperspherical(encoder, 5, example=inputs(4, 8))
    assert all(torch.equal(t, before[name]) for name, t in encoder.state_dict().items())
    assert [part.training for part in encoder] == [True, True, False, True]


def test_a_failing_example_leaves_the_mode_alone() -> None:
    encoder = nn.Conv2d(1, 4, 3).train()
    with pytest.raises(ModelError, match="flatten"):
        hyperspherical(encoder, 3, example=inputs(2, 1, 8, 8))
    assert encoder.training


@pytest.mark.parametrize("scope", [torch.inference_mode, torch.no_grad])
def test_a_head_found_while_measuring_or_evaluating_can_be_trained_with_and_calibrated(scope: type) -> None:
    x, y = inputs(60, 8), torch.arange(60) % 5
    model = hyperspherical(nn.Linear(8, 16), 5)
    with scope():
        model(x)
    sphere_mse(model(x), y).backward()
    assert model.encoder.weight.grad is not None
    model.calibrate(statistics(model, [(x, y)]))

    measured_first = hyperspherical(nn.Linear(8, 16), 5)
    measured_first.calibrate(statistics(measured_first, [(x, y)]))
    sphere_mse(measured_first(x), y).backward()


def test_an_encoder_in_double_precision_gets_a_head_of_its_own_precision() -> None:
    model = hyperspherical(nn.Linear(8, 16).double(), 5)
    assert model(inputs(3, 8).double()).dtype == torch.float64


def test_features_of_another_width_or_shape_are_refused() -> None:
    with pytest.raises(ModelError, match="16 features, the head expects 12"):
        hyperspherical(nn.Linear(8, 16), 5, dim=12)(inputs(2, 8))
    with pytest.raises(ModelError, match="flatten"):
        hyperspherical(nn.Identity(), 5)(inputs(2, 3, 8))


def test_zero_features_give_zero_scores_and_finite_gradients() -> None:
    model = hyperspherical(nn.Linear(8, 16, bias=False), 5, dim=16)
    scores = model(torch.zeros(2, 8))
    assert torch.equal(scores, torch.zeros(2, 5))
    sphere_mse(scores, torch.tensor([0, 1])).backward()
    assert bool(model.encoder.weight.grad.isfinite().all())


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))


class Nested(nn.Module):
    """A classifier whose last Linear sits inside, and that registers another Linear after it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 12), nn.ReLU())
        self.top = nn.ModuleDict({"classify": nn.Linear(12, 10)})
        self.side = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.top["classify"](self.body(x) + self.side(x))
        return scores


def test_from_classifier_replaces_the_last_linear_and_nothing_else() -> None:
    original = net()
    model = from_classifier(original, 10)
    x = inputs(4, 8)
    assert torch.equal(model.raw_features(x), original[1](original[0](x)))
    assert model.head.weight.shape == (10, 16)
    assert torch.equal(model.head.weight, hyperspherical(nn.Identity(), 10, dim=16).head.weight)


def test_from_classifier_leaves_the_network_it_was_given_unchanged() -> None:
    original = net()
    before, x = copy.deepcopy(original.state_dict()), inputs(4, 8)
    scores = original(x)
    model = from_classifier(original, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(original(x), scores)
    assert all(torch.equal(t, before[name]) for name, t in original.state_dict().items())


def test_from_classifier_asks_for_a_name_if_the_last_linear_has_other_outputs() -> None:
    with pytest.raises(ModelError) as caught:
        from_classifier(Nested(), 10)
    assert all(part in str(caught.value) for part in ("'side'", "'top.classify': 12 → 10", "layer=", "12 outputs"))


def test_from_classifier_finds_a_nested_layer_by_name() -> None:
    original = Nested()
    model = from_classifier(original, 10, layer="top.classify")
    x = inputs(4, 8)
    assert torch.equal(model.raw_features(x), original.body(x) + original.side(x))
    assert isinstance(original.top["classify"], nn.Linear)


def test_from_classifier_refuses_what_is_no_linear_layer() -> None:
    with pytest.raises(ModelError, match=r"'nowhere'.*'0', '2'"):
        from_classifier(net(), 10, layer="nowhere")
    with pytest.raises(ModelError, match="no Linear"):
        from_classifier(nn.Sequential(nn.ReLU()), 10)
    with pytest.raises(ConfigError, match="10 < 16"):
        from_classifier(nn.Linear(10, 16), 16)


def test_from_classifier_of_a_bare_linear_layer_leaves_the_identity() -> None:
    model = from_classifier(nn.Linear(12, 10), 10)
    x = inputs(3, 12)
    assert torch.equal(model.raw_features(x), x)


def test_a_state_dict_travels_into_a_model_whose_head_is_still_open() -> None:
    x, y = inputs(60, 8), torch.arange(60) % 5
    model = hyperspherical(nn.Linear(8, 16), 5)
    assert "head.weight" not in model.state_dict()
    model.calibrate(statistics(model, [(x, y)]))
    other = hyperspherical(nn.Linear(8, 16), 5)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    assert not torch.equal(other.head.weight, Orthonormal().build(5, 16, 0).weight)


def test_an_open_head_needs_no_place_in_an_optimiser() -> None:
    model = hyperspherical(nn.Linear(8, 16), 5)
    parameters = {id(p) for p in model.parameters()}
    model(inputs(2, 8))
    assert {id(p) for p in model.parameters()} == parameters
    assert "uninitialized, fixed" in repr(hyperspherical(nn.Identity(), 5))


@pytest.mark.parametrize("head", [Learned(), FixedRandom(), Orthonormal()])
def test_calibrating_replaces_the_head_in_place(head: Learned | FixedRandom | Orthonormal) -> None:
    model = Classifier(nn.Linear(8, 16), head.build(5, 16, 0), num_classes=5, normalize=True)
    weight = model.head.weight
    x, y = inputs(200, 8), torch.arange(200) % 5
    total = statistics(model, [(x, y)])
    solution = model.calibrate(total, ridge=0.1)
    assert model.head.weight is weight
    assert torch.equal(weight, total.solve(0.1).weight.float())
    assert torch.equal(weight, solution.weight.float())
    assert weight.requires_grad == isinstance(head, Learned)


def test_calibrating_with_foreign_statistics_is_refused() -> None:
    total = statistics(hyperspherical(nn.Identity(), 3, dim=8), [(inputs(9, 8), torch.arange(9) % 3)])
    for other in (hyperspherical(nn.Identity(), 3, dim=9), hyperspherical(nn.Identity(), 4, dim=8)):
        with pytest.raises(ModelError, match="measure them with this model"):
            other.calibrate(total)
    with pytest.raises(ModelError, match="not known yet"):
        hyperspherical(nn.Identity(), 3).calibrate(total)


def test_calibration_raises_training_accuracy_on_separable_features() -> None:
    centres = Orthonormal().build(4, 6, seed=99).weight
    y = torch.arange(200) % 4
    x = centres[y] + 0.05 * inputs(200, 6)
    model = hyperspherical(nn.Identity(), 4, dim=6)
    before = float((model(x).argmax(dim=1) == y).float().mean())
    model.calibrate(statistics(model, [(x, y)]))
    assert before < 1.0
    assert torch.equal(model(x).argmax(dim=1), y)
