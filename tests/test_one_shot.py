"""One upload instead of training: frozen encoders, rounds = 0, and a head that does not depend on the partition."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spherefed
from spherefed.assembly import InMemory, assemble
from spherefed.calibration import Ffc, FfcGcv
from spherefed.client.evaluation import GLOBAL_TEST
from spherefed.client.personalization import FineTune
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Dirichlet, Iid, Partitioner
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import (
    Data,
    Experiment,
    Model,
    experiment_from_json,
    experiment_from_mapping,
    experiment_to_json,
)
from spherefed.files import json_bytes
from spherefed.nn.encoders import CallableEncoder, Encoder, Flatten, SmallNet
from spherefed.nn.feature_maps import FeatureMap, RandomFourier, RandomRelu
from spherefed.nn.frozen import BATCH_ROWS, Frozen
from spherefed.nn.heads import Orthonormal
from spherefed.runs.digests import finish_files
from spherefed.runs.directory import read_json
from spherefed.runs.loading import evaluate_run
from spherefed.runs.runner import Engine, run_to_end
from spherefed.server.algorithms import fedrep, lg_fedavg
from spherefed.tensors import digest

LOCAL = LocalTraining(lr=0.1, epochs=1)


@pytest.fixture(autouse=True)
def own_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Features are cached below the data root."""
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "data-root"))
    return tmp_path / "data-root"


def one_shot(
    partition: Partitioner | None = None,
    *,
    encoder: Encoder | None = None,
    feature_map: FeatureMap | None = None,
    **changes: Any,
) -> Experiment:
    model = Model(
        encoder=encoder or Flatten(),
        frozen=True,
        feature_map=feature_map,
        head=Orthonormal(),
        normalize=True,
    )
    settings = {"calibration": Ffc(ridge=0.1), "min_samples": 1, **changes}
    return Experiment(name="one-shot", rounds=0, partition=partition or Iid(clients=4), model=model, **settings)


def pooled_accuracy(experiment: Experiment, ridge: float) -> float:
    """Ridge regression in numpy on the pooled pixels' features."""
    data = assemble(experiment).dataset
    classifier = assemble(experiment).local_model.classifier

    def features(part: Any) -> tuple[np.ndarray, np.ndarray]:
        ((inputs, labels),) = part.in_order(len(part), device=torch.device("cpu"))
        with torch.no_grad():
            rows = classifier.encoder(inputs).double().numpy()
        return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels.numpy()

    (z, y), (test_z, test_y) = features(data.train), features(data.test)
    augmented = np.concatenate([z, np.sqrt(ridge) * np.eye(z.shape[1])])
    targets = np.concatenate([np.eye(10)[y], np.zeros((z.shape[1], 10))])
    weight = np.linalg.lstsq(augmented, targets, rcond=None)[0]
    return float(np.mean((test_z @ weight).argmax(axis=1) == test_y))


@pytest.mark.parametrize("feature_map", [None, RandomFourier(dim=128, bandwidth=0.5), RandomRelu(dim=128)])
def test_no_rounds_give_the_ridge_regression_of_the_pooled_features(
    feature_map: FeatureMap | None, tmp_path: Path
) -> None:
    experiment = one_shot(feature_map=feature_map)
    result = run_to_end(experiment, tmp_path / "run")
    assert result["rounds"] == 0
    assert result["accuracy"]["calibrated"][GLOBAL_TEST] == pytest.approx(pooled_accuracy(experiment, 0.1), abs=0.003)
    assert result["accuracy"]["calibrated"][GLOBAL_TEST] > 0.9
    assert result["traffic"]["train"] == {"down": 0, "up": 0}


PARTITIONS = [Iid(clients=1), Iid(clients=10), Dirichlet(alpha=0.01, clients=30), Dirichlet(alpha=1.0, clients=200)]


@pytest.mark.parametrize(
    ("encoder", "feature_map"), [(Flatten(), RandomFourier(dim=64, bandwidth=0.5)), (SmallNet(norm="batch"), None)]
)
def test_the_head_is_the_same_to_the_bit_for_every_partition(
    encoder: Encoder, feature_map: FeatureMap | None, tmp_path: Path
) -> None:
    digests = set()
    for index, partition in enumerate(PARTITIONS):
        experiment = one_shot(partition, encoder=encoder, feature_map=feature_map, calibration=FfcGcv())
        digests.add(run_to_end(experiment, tmp_path / str(index))["weights_sha256"])
    assert len(digests) == 1


@pytest.mark.slow
def test_the_head_is_the_same_to_the_bit_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    experiment = one_shot(Dirichlet(alpha=0.1, clients=7), feature_map=RandomFourier(dim=64, bandwidth=0.5))
    here = run_to_end(experiment, tmp_path / "here")
    workers = run_to_end(experiment, tmp_path / "workers", engine=Engine(workers=2))
    (tmp_path / "here" / "result.json").unlink()
    resumed = run_to_end(experiment, tmp_path / "here", resume=True)
    assert here["weights_sha256"] == workers["weights_sha256"] == resumed["weights_sha256"]


def test_a_finished_run_is_loaded_with_its_encoder_and_another_encoder_is_refused(tmp_path: Path) -> None:
    experiment = one_shot(encoder=SmallNet(), feature_map=RandomFourier(dim=64))
    result = run_to_end(experiment, tmp_path)
    model, test = spherefed.load(tmp_path), assemble(experiment).dataset.test
    ((inputs, labels),) = test.in_order(len(test), device=torch.device("cpu"))
    accuracy = float((model(inputs).argmax(dim=1) == labels).double().mean())
    assert accuracy == pytest.approx(result["accuracy"]["calibrated"][GLOBAL_TEST], abs=1e-9)
    changed = json_bytes(read_json(tmp_path / "result.json") | {"frozen_sha256": "other"})
    finish_files(tmp_path, {"result.json": changed})
    with pytest.raises(RunError, match="the frozen encoder built here has other weights"):
        spherefed.load(tmp_path)


@pytest.mark.parametrize("recorded", [None, digest({})])
def test_a_run_on_the_inputs_themselves_is_loaded(recorded: str | None, tmp_path: Path) -> None:
    """Nothing is frozen then; earlier releases recorded the digest of nothing."""
    result = run_to_end(one_shot(encoder=Flatten()), tmp_path)
    assert result["frozen_sha256"] is None
    finish_files(tmp_path, {"result.json": json_bytes(result | {"frozen_sha256": recorded})})
    assert evaluate_run(tmp_path, "digits").accuracy == result["accuracy"]["calibrated"][GLOBAL_TEST]


def test_a_learned_head_is_trained_on_a_frozen_encoder_that_is_never_sent(tmp_path: Path) -> None:
    experiment = Experiment(
        name="probe",
        rounds=3,
        local=LocalTraining(lr=2.0, epochs=10),
        model=Model(encoder=SmallNet(norm="batch"), frozen=True),
        partition=Iid(clients=3),
    )
    state = assemble(experiment).initial()
    assert list(state.params) == ["head.weight"]
    assert not state.buffers
    result = run_to_end(experiment, tmp_path)
    assert result["accuracy"]["trained"][GLOBAL_TEST] > 0.7
    head_bytes = state.params["head.weight"].nbytes
    assert result["traffic"]["train"]["up"] < 3 * (head_bytes + 100)


def test_a_cache_takes_the_place_of_a_frozen_encoder_and_changes_no_bit(
    own_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = one_shot(encoder=SmallNet(norm="batch"), feature_map=RandomFourier(dim=16))
    cached = assemble(experiment)
    assert cached.features is not None
    assert cached.clients[0].examples.inputs.shape[1:] == (256,)
    assert len([*own_data_root.glob("cache/features-*")]) == 2  # training and test inputs
    monkeypatch.setattr("spherefed.assembly.feature_dataset", lambda *given: None)
    plain = assemble(experiment)
    assert plain.features is None
    assert plain.local_model.frozen_digest() == cached.local_model.frozen_digest()
    for number in range(4):
        moments = [
            Ffc().measure(
                each.local_model.classifier, each.clients[number].examples.in_order(50, device=torch.device("cpu"))
            )
            for each in (cached, plain)
        ]
        assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])


def test_a_second_experiment_computes_no_feature_again(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = one_shot(encoder=SmallNet(), data=Data(examples=100))
    assemble(experiment)
    rows: list[int] = []
    forward = Frozen.forward

    def counted(self: Frozen, inputs: torch.Tensor) -> torch.Tensor:
        rows.append(len(inputs))
        return forward(self, inputs)

    monkeypatch.setattr(Frozen, "forward", counted)
    assemble(replace(experiment, partition=Dirichlet(alpha=0.1, clients=9), calibration=FfcGcv()))
    assert max(rows) == BATCH_ROWS  # of training and test examples, for the key
    probes = sum(rows)
    assemble(replace(experiment, data=Data(examples=120)))
    assert sum(rows) - 2 * probes == 120 - len(shared_examples(100, 120))
    before = sum(rows)
    assemble(replace(experiment, seed=1))  # other weights
    assert sum(rows) - before > 400


def test_other_code_with_the_same_weights_and_settings_misses_the_cache(
    own_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = one_shot(encoder=SmallNet(), data=Data(examples=100))
    first = assemble(experiment)
    forward = Frozen.forward
    monkeypatch.setattr(Frozen, "forward", lambda self, inputs: 2 * forward(self, inputs))
    second = assemble(experiment)
    assert len([*own_data_root.glob("cache/features-*")]) == 4
    assert first.features is not None
    assert second.features is not None
    rows = first.dataset.train.indices
    assert torch.equal(second.features.train.inputs[rows], 2 * first.features.train.inputs[rows])


@pytest.mark.parametrize("changed", ["nothing", "resize", "weight", "pixel", "normalization"])
def test_a_changed_resize_weight_pixel_or_normalization_misses_the_cache(
    changed: str, own_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = assemble(one_shot()).dataset
    options: dict[str, Any] = {"factor": 1.0, "resize": 6, "mean": [0.5], "std": [0.25]}
    first = assemble(one_shot(encoder=own_encoder(**options)), in_memory=InMemory(dataset=data))
    rows: list[int] = []
    forward = Frozen.forward

    def counted(self: Frozen, inputs: torch.Tensor) -> torch.Tensor:
        rows.append(len(inputs))
        return forward(self, inputs)

    monkeypatch.setattr(Frozen, "forward", counted)
    options |= {"resize": {"resize": 7}, "weight": {"factor": 1.001}, "normalization": {"std": [0.26]}}.get(changed, {})
    if changed == "pixel":
        pixels = data.train.inputs.clone()
        pixels[5, 0, 3, 3] += 1
        data = replace(data, train=replace(data.train, inputs=pixels))
    second = assemble(one_shot(encoder=own_encoder(**options)), in_memory=InMemory(dataset=data))
    folders = len([*own_data_root.glob("cache/features-*")])
    num_train, num_test = len(data.train.inputs), len(data.test.inputs)
    computed = {"nothing": 0, "pixel": num_train}.get(changed, num_train + num_test)
    probes = 2 * BATCH_ROWS + 2  # one batch of each part for the key, and the shapes of the model
    assert computed <= sum(rows) <= computed + probes
    assert folders == 2 + {"nothing": 0, "pixel": 1}.get(changed, 2)
    assert first.features is not None
    assert second.features is not None
    same = first.features.train.inputs.shape == second.features.train.inputs.shape and torch.equal(
        first.features.train.inputs, second.features.train.inputs
    )
    assert same is (changed == "nothing")


def own_encoder(**options: Any) -> CallableEncoder:
    return CallableEncoder("support.own.encoders:Scaled", tuple(sorted(options.items())))


def shared_examples(few: int, more: int) -> set[int]:
    """Training examples that are in both subsets of digits."""
    subsets = [assemble(one_shot(data=Data(examples=num))).dataset.train.indices for num in (few, more)]
    first, second = (set(indices.tolist()) for indices in subsets if indices is not None)
    return first & second


def test_local_is_optional_without_rounds_and_survives_json() -> None:
    experiment = one_shot(feature_map=RandomRelu(dim=8))
    assert experiment.local is None
    assert experiment_from_json(experiment_to_json(experiment)) == experiment


def test_frozen_may_be_written_beside_the_encoder() -> None:
    plain = json.loads(experiment_to_json(one_shot(encoder=SmallNet())))
    del plain["model"]["frozen"]
    plain["model"]["encoder"]["frozen"] = True
    assert experiment_from_mapping(plain) == one_shot(encoder=SmallNet())
    own = {"kind": "support.own.encoders:TinyNet", "frozen": True}  # an option of the user's own class
    settings = {"name": "x", "rounds": 1, "local": {"lr": 0.1}, "model": {"encoder": own}}
    assert not experiment_from_mapping(settings).model.frozen


def broken(**changes: Any) -> Experiment:
    return replace(one_shot(), **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: broken(model=Model(head=Orthonormal())), r"rounds = 0 needs model\.frozen = true"),
        (lambda: broken(calibration=None), "rounds = 0 needs a calibration"),
        (lambda: broken(rounds=2, model=Model()), "local is required"),
        (lambda: broken(rounds=2, local=LOCAL), r"nothing is trained with model\.frozen = true"),
        (lambda: broken(algorithm=lg_fedavg(), calibration=None), r"algorithm\.share = 'head' .* model\.frozen"),
        (lambda: broken(algorithm=fedrep(), calibration=None), r"algorithm\.share = 'encoder' .* model\.frozen"),
        (lambda: Model(frozen=True, batch_statistics="reestimate"), r"model\.batch_statistics = 'reestimate'"),
        (lambda: Model(feature_map=RandomRelu()), r"model\.feature_map 'relu' .* set model\.frozen = true"),
        (
            lambda: broken(personalization=FineTune(lr=0.1), data=Data(held_out=0.2)),
            "personalization 'fine-tune' needs local",
        ),
        (lambda: broken(rounds=-1), "rounds must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
