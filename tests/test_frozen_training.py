"""Training on top of a frozen encoder: an adapter and a head are trained on cached features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spherefed as sf
from spherefed.assembly import assemble
from spherefed.calibration import Ffc
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.errors import ConfigError, ModelError
from spherefed.experiment import Data, Experiment, Model, experiment_from_json, experiment_to_json
from spherefed.losses import MeanSquaredError
from spherefed.nn.encoders import Mlp, SmallNet
from spherefed.nn.feature_maps import RandomFourier
from spherefed.nn.heads import Orthonormal
from spherefed.runs.runner import Engine, run_to_end
from spherefed.server.algorithms import lg_fedavg


@pytest.fixture(autouse=True)
def own_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features are cached below the data root."""
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    return tmp_path / "data-root"


def on_frozen_features(rounds: int = 2, **changes: Any) -> Experiment:
    """SphereFed with an MLP as trainable encoder, on the features of a frozen network."""
    model = Model(
        encoder=SmallNet(norm="batch"), frozen=True, adapter=Mlp(widths=(16,)), head=Orthonormal(), normalize=True
    )
    return Experiment(
        name="adapter",
        rounds=rounds,
        local=LocalTraining(lr=1.0, epochs=2),
        data=Data(examples=300),
        partition=Iid(clients=3),
        model=model,
        loss=MeanSquaredError(),
        calibration=Ffc(),
        **changes,
    )


def test_only_the_adapter_is_trained_and_sent() -> None:
    state = assemble(on_frozen_features()).initial()
    assert list(state.params) == ["encoder.1.1.weight", "encoder.1.1.bias"]
    assert not state.buffers


@pytest.mark.parametrize("feature_map", [None, RandomFourier(dim=64)])
def test_training_on_cached_features_has_the_bits_of_training_without_a_cache(
    feature_map: RandomFourier | None, tmp_path: Path, own_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = on_frozen_features()
    experiment = replace(experiment, model=replace(experiment.model, feature_map=feature_map))
    cached = run_to_end(experiment, tmp_path / "cached")
    assert len([*own_data_root.glob("cache/features-*")]) == 2  # training and test inputs
    monkeypatch.setattr("spherefed.assembly.feature_dataset", lambda *given: None)
    plain = run_to_end(experiment, tmp_path / "plain")
    assert cached["weights_sha256"] == plain["weights_sha256"]
    assert cached["frozen_sha256"] == plain["frozen_sha256"]


@pytest.mark.slow
def test_workers_train_the_adapter_to_the_same_bits(tmp_path: Path) -> None:
    experiment = on_frozen_features(rounds=1)
    here = run_to_end(experiment, tmp_path / "here")
    assert (
        here["weights_sha256"] == run_to_end(experiment, tmp_path / "two", engine=Engine(workers=1))["weights_sha256"]
    )


def test_an_adapter_learns(tmp_path: Path) -> None:
    experiment = replace(on_frozen_features(rounds=5), data=Data(), local=LocalTraining(lr=0.3, epochs=5))
    experiment = replace(experiment, model=replace(experiment.model, adapter=Mlp(widths=(64,))))
    assert run_to_end(experiment, tmp_path)["accuracy"]["trained"][GLOBAL_TEST] > 0.35  # by chance: 0.1


def test_the_experiment_survives_json() -> None:
    assert experiment_from_json(experiment_to_json(on_frozen_features())) == on_frozen_features()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: on_frozen_features(rounds=0), r"rounds = 0 leaves model\.adapter 'mlp' untrained"),
        (lambda: Model(adapter=Mlp()), r"model\.adapter 'mlp' is trained on a frozen encoder"),
        (lambda: replace(on_frozen_features(), algorithm=lg_fedavg(), calibration=None), r"algorithm\.share = 'head'"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def on_frozen_module(module: nn.Module, inputs: Tensor, **model: Any) -> sf.Result:
    """One round of an adapter, or none and a feature map, on a module that the caller passes."""
    rounds = 1 if "adapter" in model else 0
    own = sf.recipe("digits", method="fedavg+spherefed", rounds=rounds, min_samples=1, model={"frozen": True, **model})
    return sf.run(own, data=(inputs, torch.arange(len(inputs)) % 2), encoder=module, progress=False)


AFTER = {"feature map": {"feature_map": RandomFourier(dim=8)}, "adapter": {"adapter": Mlp(widths=(8,))}}


@pytest.mark.filterwarnings("ignore:not tuned")
@pytest.mark.parametrize("model", AFTER.values(), ids=AFTER)
def test_a_frozen_encoder_of_token_ids_is_followed_by(model: dict[str, Any]) -> None:
    tokens = (torch.arange(60) % 2)[:, None].expand(60, 3)  # 0 0 0 or 1 1 1, as the labels
    assert on_frozen_module(nn.EmbeddingBag(2, 4), tokens, **model).accuracy == 1


@pytest.mark.filterwarnings("ignore:not tuned")
@pytest.mark.parametrize("model", AFTER.values(), ids=AFTER)
def test_a_frozen_encoder_for_other_inputs_is_named_whatever_follows_it(model: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"cannot read inputs of \(3,\), float32"):
        on_frozen_module(nn.Linear(4, 4), torch.zeros(60, 3), **model)


def test_an_adapter_for_images_is_refused_by_name() -> None:
    experiment = on_frozen_features()
    experiment = replace(experiment, model=replace(experiment.model, adapter=SmallNet()))
    with pytest.raises(ConfigError, match=r"'smallnet'.*\(256,\)"):
        assemble(experiment)
