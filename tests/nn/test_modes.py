"""`eval_mode`, and that everything that measures a model leaves the mode of each submodule as it was."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spherefed.calibration import Calibration
from spherefed.calibration.features import labelled_features
from spherefed.calibration.ffc import statistics
from spherefed.errors import SpherefedError
from spherefed.nn.classifier import Classifier, hyperspherical
from spherefed.nn.layers import eval_mode
from spherefed.schema import built_in_kinds

MEASURES: dict[str, Callable[[Classifier, Iterable[tuple[Tensor, Tensor]]], Any]] = {
    "statistics": statistics,
    "labelled_features": labelled_features,
    **{member.kind: member().measure for member in built_in_kinds(Calibration).values()},
}


def training_model_with_frozen_layer() -> tuple[Classifier, nn.Module]:
    frozen = nn.BatchNorm1d(4)
    model = hyperspherical(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), frozen), 3, dim=4).train()
    frozen.eval()
    return model, frozen


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def test_eval_mode_reaches_every_submodule_and_restores_each_mode() -> None:
    model, frozen = training_model_with_frozen_layer()
    before = modes(model)
    with eval_mode(model):
        assert not any(modes(model).values())
    assert modes(model) == before
    assert model.training
    assert not frozen.training


def test_eval_mode_restores_each_mode_after_an_error() -> None:
    model, _ = training_model_with_frozen_layer()
    before = modes(model)
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        _ = 1 / 0
    assert modes(model) == before


@pytest.mark.parametrize("name", MEASURES)
def test_a_frozen_batchnorm_layer_stays_frozen_after_measuring(name: str) -> None:
    model, frozen = training_model_with_frozen_layer()
    before = modes(model)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    x, y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    MEASURES[name](model, [(x, y)])
    assert modes(model) == before
    assert not frozen.training
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", MEASURES)
def test_a_frozen_batchnorm_layer_stays_frozen_after_measuring_fails(name: str) -> None:
    model, _ = training_model_with_frozen_layer()
    before = modes(model)
    with pytest.raises(SpherefedError, match="not finite"):
        MEASURES[name](model, [(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))])
    assert modes(model) == before
