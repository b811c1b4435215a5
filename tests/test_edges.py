"""Corner cases end to end: a correct result or a typed error, never another exception."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spherefed.assembly import assemble
from spherefed.calibration.ffc import statistics
from spherefed.client.training import LocalTraining
from spherefed.data.dataset import Dataset
from spherefed.data.partition import Dirichlet, Iid
from spherefed.errors import CalibrationError, ConfigError, DataError, FederationError
from spherefed.experiment import Data, Experiment, Model
from spherefed.losses import CrossEntropy, Loss, MeanSquaredError
from spherefed.nn.encoders import Mlp
from spherefed.nn.heads import FixedRandom, Head, Learned, Orthonormal
from spherefed.runs.loading import load
from spherefed.runs.round_log import read_lines
from spherefed.runs.runner import Engine, run_to_end
from support.small import blobs, save_arrays, tiny


def on(tmp_path: Path, dataset: Dataset | None = None, **changes: Any) -> Experiment:
    name = save_arrays(tmp_path / "data.npz", dataset or blobs())
    return tiny(**({"data": Data(name=name)} | changes))


def finished(experiment: Experiment, out: Path) -> dict[str, Any]:
    """The result, checked: every number in it is finite and the stored model is too."""
    result = run_to_end(experiment, out)
    json.dumps(result, allow_nan=False)
    assert all(bool(t.isfinite().all()) for t in load(out).state_dict().values())
    return result


def rejections(out: Path) -> list[tuple[int, int]]:
    return [(line["round"], line["client"]) for line in read_lines(out / "rejections.jsonl")]


def test_clients_with_one_example_train_but_send_no_statistics(tmp_path: Path) -> None:
    experiment = on(tmp_path, blobs(num_train=9), partition=Iid(clients=6))  # three clients hold 2, three hold 1
    result = finished(experiment, tmp_path / "run")
    sizes = assemble(experiment).partition.sizes
    assert sorted(sizes.tolist()) == [1, 1, 1, 2, 2, 2]
    assert rejections(tmp_path / "run") == [(3, k) for k in range(6) if sizes[k] == 1]
    assert "min_samples is 2" in read_lines(tmp_path / "run" / "rejections.jsonl")[0]["cause"]
    assert result["calibration"]["rank"] <= 6


def test_min_samples_of_one_lets_everybody_send_statistics(tmp_path: Path) -> None:
    experiment = on(tmp_path, blobs(num_train=9), partition=Iid(clients=9), min_samples=1)
    finished(experiment, tmp_path / "run")
    assert rejections(tmp_path / "run") == []


def test_a_calibration_that_everybody_refuses_is_a_typed_error(tmp_path: Path) -> None:
    experiment = on(tmp_path, blobs(num_train=9), partition=Iid(clients=9))
    with pytest.raises(FederationError, match="min_samples is 2"):
        run_to_end(experiment, tmp_path / "run")


def test_clients_of_one_class_each_are_calibrated_to_a_head_for_all_classes(tmp_path: Path) -> None:
    experiment = on(tmp_path, partition=Dirichlet(alpha=1e-8, clients=3), rounds=5)
    counts = assemble(experiment).partition.label_counts
    assert (np.count_nonzero(counts, axis=0) == 1).all()  # every class has one owner
    result = finished(experiment, tmp_path / "run")
    assert result["accuracy"]["calibrated"]["global_model/global_test"] > 0.8


def test_a_data_set_of_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 2 classes, got only '0'"):
        finished(on(tmp_path, blobs(num_classes=1)), tmp_path / "run")


@pytest.mark.parametrize("cohort", [None, 1])
def test_empty_clients_count_for_nothing_and_do_no_harm(tmp_path: Path, cohort: int | None) -> None:
    experiment = on(tmp_path, blobs(num_train=3), partition=Iid(clients=6), cohort=cohort, min_samples=1, rounds=6)
    assert assemble(experiment).partition.sizes.tolist().count(0) == 3
    finished(experiment, tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert rejections(tmp_path / "run") == []
    if cohort is None:
        assert all(line["num_examples"] == 3 for line in lines)
    else:
        assert {line["num_examples"] for line in lines} == {0, 1}  # some rounds asked an empty client alone


def test_more_features_than_examples_interpolate(tmp_path: Path) -> None:
    experiment = on(
        tmp_path,
        blobs(num_train=12),
        partition=Iid(clients=3),
        model=Model(encoder=Mlp(widths=(64,)), head=Orthonormal(), normalize=True),
    )
    result = finished(experiment, tmp_path / "run")
    assert result["calibration"]["path"] == "eigh"
    assert result["calibration"]["rank"] == 12
    assert result["calibration"]["dropped"] == 52
    module, train = load(tmp_path / "run"), assemble(experiment).dataset.train
    with torch.no_grad():
        scores = module(train.inputs)
    assert torch.allclose(scores, nn.functional.one_hot(train.labels, 3).float(), atol=1e-3)


def test_more_classes_than_features_are_refused_by_the_orthonormal_head_only(tmp_path: Path) -> None:
    narrow, data = Mlp(widths=(4,)), blobs(num_classes=5)
    with pytest.raises(ConfigError, match="4 < 5"):
        run_to_end(on(tmp_path, data, model=Model(encoder=narrow, head=Orthonormal())), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # refused before anything is written
    for head in (Learned(), FixedRandom()):
        experiment = on(tmp_path, data, model=Model(encoder=narrow, head=head))
        finished(experiment, tmp_path / head.kind)


def encode_with(monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module]) -> None:
    """Let the experiment's encoder be this one; runs in this process only."""
    monkeypatch.setattr(Mlp, "build", lambda self, input_shape: make())


def test_zero_features_are_left_out_of_the_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs()
    data.train.inputs[:30] = 0  # without a bias nothing comes of nothing
    encode_with(monkeypatch, lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 6, bias=False)))
    experiment = on(tmp_path, data, min_samples=1)
    result = finished(experiment, tmp_path / "run")
    assert rejections(tmp_path / "run") == []
    assert result["calibration"]["rank"] == 6
    module = load(tmp_path / "run")
    total = statistics(module, [(data.train.inputs, data.train.labels)])
    assert (total.num_examples, total.num_zero) == (60, 30)


def test_nothing_but_zero_features_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> nn.Module:
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU())
        nn.init.constant_(encoder[1].bias, -1e9)
        return encoder

    encode_with(monkeypatch, silent)
    with pytest.raises(CalibrationError, match="no example was measured"):
        run_to_end(on(tmp_path), tmp_path / "run")
    result = finished(on(tmp_path, calibration=None), tmp_path / "uncalibrated")
    assert result["accuracy"]["trained"]["global_model/global_test"] == pytest.approx(1 / 3, abs=0.05)  # a guess


def test_dead_features_are_dropped_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_dead() -> nn.Module:
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU())
        nn.init.constant_(encoder[1].bias[:4], -1e9)
        nn.init.constant_(encoder[1].bias[4:], 5.0)
        return encoder

    encode_with(monkeypatch, half_dead)
    local = LocalTraining(lr=0.01, epochs=1, batch_size=8)
    result = finished(on(tmp_path, local=local), tmp_path / "run")
    assert {k: result["calibration"][k] for k in ("path", "rank", "dropped", "rcond")} == {
        "path": "eigh",
        "rank": 4,
        "dropped": 4,
        "rcond": 0.0,
    }
    assert float(load(tmp_path / "run").head.weight[:, :4].abs().max()) < 1e-9


def test_strong_skew_over_a_hundred_clients_ends(tmp_path: Path) -> None:
    experiment = tiny(partition=Dirichlet(alpha=0.01, clients=100), rounds=2, local=LocalTraining(lr=0.5, epochs=1))
    experiment = replace(experiment, model=replace(experiment.model, encoder=Mlp(widths=(32,))))
    partition = assemble(experiment).partition
    assert 0 in partition.sizes
    assert 1 in np.count_nonzero(partition.label_counts, axis=1)
    result = finished(experiment, tmp_path / "run")
    assert result["accuracy"]["calibrated"]["global_model/global_test"] > 0.5
    rejected = {client for _, client in rejections(tmp_path / "run")}
    assert rejected == {k for k in range(100) if partition.sizes[k] == 1}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_number_that_is_none_in_the_data_is_refused_before_anything_starts(
    tmp_path: Path, bad: float, part: str
) -> None:
    data = blobs()
    getattr(data, part).inputs[7, 0, 1, 2] = bad
    with pytest.raises(DataError, match="NaN or infinity"):
        run_to_end(on(tmp_path, data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_that_diverges_is_a_typed_error_that_names_a_client(tmp_path: Path) -> None:
    local = LocalTraining(lr=1e30, epochs=2, batch_size=8)
    experiment = on(tmp_path, local=local, loss=CrossEntropy(), model=Model(encoder=Mlp(widths=(8,))))
    with pytest.raises(FederationError, match=r"client 0: .*(finite|nan|inf)"):
        run_to_end(experiment, tmp_path / "run")


def test_a_client_with_one_example_is_no_batch_for_batchnorm_and_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_with(monkeypatch, lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8)))
    experiment = on(tmp_path, blobs(num_train=9), partition=Iid(clients=6), rounds=1, calibration=None)
    finished(experiment, tmp_path / "run")
    sizes = assemble(experiment).partition.sizes
    assert rejections(tmp_path / "run") == []
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert line["num_examples"] == sizes[sizes > 1].sum() < sizes.sum()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"validation": 1e-6}, ConfigError),
        ({"name": "arrays:nowhere.npz"}, DataError),
        ({"name": "digts"}, ConfigError),
        ({"examples": 10**6}, ConfigError),
    ],
)
def test_data_that_cannot_be_had_is_a_typed_error(tmp_path: Path, changes: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        run_to_end(tiny(data=Data(**changes)), tmp_path / "run")


def test_a_minimum_size_that_cannot_be_reached_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="min_size"):
        run_to_end(on(tmp_path, partition=Dirichlet(clients=4, min_size=30)), tmp_path / "run")


def test_a_device_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ConfigError, match="device"):
            run_to_end(on(tmp_path), tmp_path / "run", engine=Engine(device=device))


def test_one_client_with_one_example_runs_to_the_end(tmp_path: Path) -> None:
    experiment = on(tmp_path, blobs(num_train=1, num_classes=2), partition=Iid(clients=1), min_samples=1)
    result = finished(experiment, tmp_path / "run")
    assert result["calibration"]["rank"] == 1


@pytest.mark.parametrize("head", [Learned(), FixedRandom(), Orthonormal()])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("loss", [CrossEntropy(), MeanSquaredError()])
def test_every_head_normalisation_and_loss_learns_and_is_calibrated(
    tmp_path: Path, head: Head, normalize: bool, loss: Loss
) -> None:
    local = LocalTraining(lr=0.5 if normalize else 0.02, epochs=3, batch_size=8)
    model = Model(encoder=Mlp(widths=(16,)), head=head, normalize=normalize)
    result = finished(on(tmp_path, local=local, loss=loss, model=model, rounds=5), tmp_path / "run")
    assert result["accuracy"]["trained"]["global_model/global_test"] > 0.7
    assert result["accuracy"]["calibrated"]["global_model/global_test"] > 0.8
