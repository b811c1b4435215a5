"""Heads, the classifier, and the two doors for a user's own network."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spherefed.calibration.ffc import statistics
from spherefed.errors import ConfigError, ModelError
from spherefed.losses import CrossEntropy, MeanSquares, sphere_mse
from spherefed.messages import ModelState
from spherefed.nn import prototypes
from spherefed.nn.classifier import Classifier, from_classifier, hyperspherical
from spherefed.nn.heads import FixedRandom, Learned, Linear, Orthonormal
from spherefed.rng import Purpose, stream
from spherefed.workbench import Workbench


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_classes", "dim"), [(1, 1), (2, 2), (10, 10), (10, 64), (100, 512)])
def test_orthonormal_rows_have_unit_length_and_right_angles(num_classes: int, dim: int) -> None:
    exact = prototypes.orthonormal(num_classes, dim, stream(3, Purpose.HEAD))
    assert torch.allclose(exact @ exact.T, torch.eye(num_classes, dtype=torch.float64), atol=1e-14)
    weight = Orthonormal().build(num_classes, dim, 3).weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, exact.float())


def test_more_classes_than_dimensions_have_no_orthonormal_rows() -> None:
    with pytest.raises(ConfigError, match="9 < 10"):
        Orthonormal().build(10, 9, 0)
    with pytest.raises(ConfigError, match="9 < 10"):
        hyperspherical(nn.Identity(), 10)(inputs(2, 9))


def test_orthonormal_rows_do_not_depend_on_the_sign_convention_of_qr() -> None:
    rng = stream(1, Purpose.HEAD)
    gauss = rng.standard_normal((6, 4))
    rows = prototypes.orthonormal(4, 6, stream(1, Purpose.HEAD)).numpy()
    for k in range(4):  # Gram–Schmidt's own convention: each vector points along the draw it came from
        assert rows[k] @ gauss[:, k] > 0


@pytest.mark.parametrize("head", [Learned(), FixedRandom(), Orthonormal()])
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(head: Learned | FixedRandom | Orthonormal) -> None:
    torch.manual_seed(0)
    first = head.build(5, 16, 7).weight
    torch.manual_seed(1)
    assert torch.equal(head.build(5, 16, 7).weight, first)
    assert not torch.equal(head.build(5, 16, 8).weight, first)


def test_random_rows_follow_the_range_of_torchs_own_linear() -> None:
    rows = FixedRandom().build(200, 25, 0).weight
    assert float(rows.abs().max()) <= 0.2
    assert float(rows.abs().max()) > 0.199
    assert abs(float(rows.mean())) < 0.01


def test_only_a_learned_head_has_parameters() -> None:
    assert [n for n, _ in Learned().build(3, 4, 0).named_parameters()] == ["weight"]
    for head in (FixedRandom(), Orthonormal()):
        built = head.build(3, 4, 0)
        assert not list(built.parameters())
        assert [n for n, _ in built.named_buffers()] == ["weight"]


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
    assert not given.head.is_open
    assert not shown.head.is_open
    assert lazy.head.is_open
    lazy(x)
    assert not lazy.head.is_open
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


def test_sphere_mse_equals_equation_5_written_as_a_loop() -> None:
    scores, labels = inputs(7, 4).double(), torch.tensor([0, 1, 2, 3, 3, 1, 0])
    expected = 0.0
    for i in range(7):
        for c in range(4):
            expected += (float(scores[i, c]) - (1.0 if c == int(labels[i]) else 0.0)) ** 2 / 4 / 7
    assert float(sphere_mse(scores, labels)) == pytest.approx(expected, rel=1e-12)
    assert torch.equal(MeanSquares()(scores, labels), sphere_mse(scores, labels))


def test_cross_entropy_scales_the_scores_by_tau() -> None:
    scores, labels = inputs(7, 4).double(), torch.tensor([0, 1, 2, 3, 3, 1, 0])
    for tau in (1.0, 10.0):
        expected = np.mean([-float(np.log(_softmax(tau * scores[i].numpy())[int(labels[i])])) for i in range(7)])
        assert float(CrossEntropy(scale=tau)(scores, labels)) == pytest.approx(expected, rel=1e-12)


def _softmax(values: np.ndarray) -> np.ndarray:
    return np.exp(values) / np.exp(values).sum()


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
    assert "open, fixed" in repr(hyperspherical(nn.Identity(), 5))


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


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


def bench(head: Linear | None = None) -> Workbench:
    torch.manual_seed(0)
    return Workbench(Classifier(Normed(), head or Orthonormal().build(3, 6, 0), num_classes=3, normalize=True))


def test_a_bench_keeps_parameters_buffers_and_the_head_apart() -> None:
    state = bench().read()
    assert state.params.keys() == {f"encoder.layers.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert state.buffers.keys() == {"encoder.layers.1.running_mean", "encoder.layers.1.running_var"}
    assert state.head is None
    assert "head.weight" in bench(Learned().build(3, 6, 0)).read().params


def test_what_is_laid_on_a_bench_is_read_off_again_and_the_fixed_head_comes_back() -> None:
    mine = bench()
    own = mine.classifier.head.weight.clone()
    state = mine.read()
    other = ModelState(
        {n: t + 1 for n, t in state.params.items()}, {n: t + 2 for n, t in state.buffers.items()}, {"weight": own + 3}
    )
    mine.lay(other)
    assert torch.equal(mine.classifier.head.weight, own + 3)
    assert mine.read().digest() == ModelState(other.params, other.buffers).digest()
    mine.lay(state)
    assert torch.equal(mine.classifier.head.weight, own)
    assert mine.read().digest() == state.digest()


def test_a_model_of_other_names_or_shapes_cannot_be_laid_on_a_bench() -> None:
    state = bench().read()
    first = next(iter(state.params))
    narrow = {**state.params, first: state.params[first][:1]}  # would broadcast
    missing = {n: t for n, t in state.params.items() if n != first}
    for params in (narrow, missing):
        with pytest.raises(ModelError, match="does not fit"):
            bench().lay(ModelState(params, state.buffers))
    with pytest.raises(ModelError, match="does not fit"):
        bench().lay(ModelState(state.params, state.buffers, {"weight": torch.zeros(1, 6)}))


def test_a_model_state_comes_back_from_its_named_tensors() -> None:
    state = bench().read()
    whole = ModelState(state.params, state.buffers, {"weight": torch.ones(3, 6)})
    for model in (state, whole):
        back = ModelState.from_tensors(model.tensors())
        assert back.digest() == model.digest()
        assert (back.head is None) == (model.head is None)


def test_digests_see_names_shapes_dtypes_and_single_bits() -> None:
    def digest(name: str, tensor: Tensor) -> str:
        return ModelState({name: tensor}, {}).digest()

    a = torch.tensor([1.0, 2.0])
    variants = [digest("a", a), digest("b", a), digest("a", a.view(1, 2)), digest("a", a.view(torch.int32))]
    variants.append(digest("a", torch.nextafter(a, torch.tensor(3.0))))
    assert len(set(variants)) == len(variants)
    assert digest("a", a.clone()) == variants[0]
