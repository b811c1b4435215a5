"""Networks that are worked on channels last: what travels is laid out as ever, and engines agree to the bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from spherefed.assembly import assemble, build_classifier
from spherefed.data.partition import Iid
from spherefed.experiment import Data, Experiment, Model
from spherefed.messages import Train, TrainReply
from spherefed.nn.encoders import ConvNet, Encoder, Mlp, MobileNetV2, SmallNet
from spherefed.runner import Engine, load, run_to_end
from spherefed.tensors import digest
from spherefed.training import LocalTraining


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    rng = np.random.default_rng(0)
    parts = {"": 40, "test_": 10}
    images = {f"{p}images": rng.integers(256, size=(n, 3, 8, 8), dtype=np.uint8) for p, n in parts.items()}
    np.savez(tmp_path / "data.npz", **images, **{f"{p}labels": np.arange(n) % 4 for p, n in parts.items()})
    return Experiment(
        name="channels-last",
        rounds=2,
        data=Data(name=f"arrays:{tmp_path / 'data.npz'}"),
        partition=Iid(clients=4),
        model=Model(encoder=SmallNet(norm="batch")),
        local=LocalTraining(lr=0.05, epochs=1, batch_size=5),
    )


@pytest.mark.parametrize(
    ("encoder", "last"),
    [
        (ConvNet(), False),
        (ConvNet(norm="batch"), True),
        (MobileNetV2(norm="group"), True),
        (SmallNet(norm="batch"), True),
        (Mlp(), False),
    ],
)
def test_the_layout_follows_from_the_layers(encoder: Encoder, last: bool, experiment: Experiment) -> None:
    classifier = build_classifier(replace(experiment, model=Model(encoder=encoder)), (3, 32, 32), 4)
    wide = [p for p in classifier.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in wide) == (last or not wide)


def test_what_travels_is_laid_out_row_by_row(experiment: Experiment) -> None:
    assembly = assemble(experiment)
    initial = assembly.initial()
    assert not all(p.is_contiguous() for p in assembly.bench.params.values())
    assert all(t.is_contiguous() for t in initial.tensors().values())
    reply, _ = assembly.client(0).handle(Train(0, initial, 0.1), None)
    assert isinstance(reply, TrainReply)
    assert all(t.is_contiguous() for t in (*reply.delta.values(), *reply.buffers.values()))


def test_a_digest_does_not_depend_on_the_layout() -> None:
    tensor = torch.randn(2, 3, 4, 5)
    assert digest({"w": tensor}) == digest({"w": tensor.contiguous(memory_format=torch.channels_last)})


def test_engines_agree_and_a_loaded_model_can_be_saved(experiment: Experiment, tmp_path: Path) -> None:
    alone = run_to_end(experiment, tmp_path / "alone")
    together = run_to_end(experiment, tmp_path / "together", engine=Engine(workers=2))
    assert alone["weights_sha256"] == together["weights_sha256"]
    save(load(tmp_path / "alone").state_dict())
