"""Networks that are worked on channels last: what travels is laid out as ever, and engines agree to the bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from spherefed.assembly import assemble, build_classifier
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.experiment import Data, Experiment, Model
from spherefed.messages import Train, TrainReply
from spherefed.nn.encoders import ConvNet, Encoder, Mlp, MobileNetV2, SmallNet
from spherefed.nn.layers import prefers_channels_last
from spherefed.runs.loading import load
from spherefed.runs.runner import Engine, run_to_end
from spherefed.tensors import digest
from support.small import handle_one


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
    ],
)
def test_the_layout_follows_from_the_layers(encoder: Encoder, last: bool, experiment: Experiment) -> None:
    classifier = build_classifier(replace(experiment, model=Model(encoder=encoder)), (3, 32, 32), 4)
    # Where there is one input channel or one pixel, both layouts are the same.
    wide = [p for p in classifier.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert wide
    assert {p.is_contiguous(memory_format=torch.channels_last) for p in wide} == {last}
    assert {p.is_contiguous() for p in wide} == {not last}


def test_a_network_without_images_has_no_channels_to_put_last(experiment: Experiment) -> None:
    classifier = build_classifier(replace(experiment, model=Model(encoder=Mlp())), (3, 32, 32), 4)
    assert not prefers_channels_last(classifier)
    assert {p.is_contiguous() for p in classifier.parameters()} == {True}


def test_what_travels_is_laid_out_row_by_row(experiment: Experiment) -> None:
    assembly = assemble(experiment)
    initial = assembly.initial()
    assert not all(p.is_contiguous() for p in assembly.local_model.params.values())
    assert all(t.is_contiguous() for t in initial.tensors().values())
    reply, _ = handle_one(assembly.clients[0], Train(0, initial, 0.1), None)
    assert isinstance(reply, TrainReply)
    assert all(t.is_contiguous() for t in (*reply.delta.values(), *reply.buffers.values()))


def test_a_digest_does_not_depend_on_the_layout() -> None:
    tensor = torch.randn(2, 3, 4, 5)
    assert digest({"w": tensor}) == digest({"w": tensor.contiguous(memory_format=torch.channels_last)})


@pytest.mark.slow
def test_engines_agree_and_a_loaded_model_can_be_saved(experiment: Experiment, tmp_path: Path) -> None:
    alone = run_to_end(experiment, tmp_path / "alone")
    together = run_to_end(experiment, tmp_path / "together", engine=Engine(workers=2))
    assert alone["weights_sha256"] == together["weights_sha256"]
    save(load(tmp_path / "alone").state_dict())
