"""Every encoder learns: one round on 512 images of CIFAR-100's shape, and the loss falls.

The images are CIFAR-100's own if SPHEREFED_TEST_DATA names a folder with the official archive, and made up otherwise.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from spherefed.assembly import Assembly, assemble
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.engines.local import InProcess
from spherefed.experiment import Data, Experiment, Model
from spherefed.messages import ModelState
from spherefed.nn.encoders import VGG13, ConvNet, Encoder, MobileNetV2, ResNet18, SENet18, SmallNet
from spherefed.server.federation import federate
from spherefed.tensors import one_thread

NUM_IMAGES = 512
FOLDER = Path(os.environ.get("SPHEREFED_TEST_DATA") or "/nonexistent")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Name of the data set, and the data root."""
    root = tmp_path_factory.mktemp("learning")
    found = [FOLDER / name for name in ("cifar-100-python.tar.gz", "cifar-100-python.tar.xz", "cifar-100-python")]
    for path in filter(Path.exists, found):
        (root / path.name).symlink_to(path)
        return "cifar100", str(root)
    np.savez(root / "images.npz", **made_up(NUM_IMAGES, ""), **made_up(100, "test_"))
    return f"arrays:{root / 'images.npz'}", str(root)


def made_up(num: int, prefix: str) -> dict[str, np.ndarray]:
    """Noisy pictures, each class with a coarse pattern of its own."""
    patterns = np.random.default_rng(0).integers(256, size=(100, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
    rng = np.random.default_rng(num)
    labels = np.arange(num) % 100
    images = (patterns[labels] + rng.integers(256, size=(num, 3, 32, 32))) // 2
    return {f"{prefix}images": images.astype(np.uint8), f"{prefix}labels": labels}


def loss_of(assembly: Assembly, model: ModelState) -> float:
    """On the training images, as evaluation sees them."""
    assembly.local_model.load_state(model)
    classifier, loss, total = assembly.local_model.classifier.eval(), assembly.experiment.loss, 0.0
    with torch.inference_mode(), one_thread():
        for inputs, labels in assembly.dataset.train.in_order(128, device=assembly.local_model.device):
            total += float(loss(classifier(inputs), labels)) * len(labels)
    return total / len(assembly.dataset.train)


SLOW = [pytest.param(e, marks=pytest.mark.soak) for e in (VGG13(), ResNet18(), SENet18(), MobileNetV2())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder", [SmallNet(), SmallNet(norm="batch"), ConvNet(), ConvNet(norm="batch"), *SLOW], ids=str
)
def test_one_round_on_512_images_lowers_the_loss(encoder: Encoder, source: tuple[str, str]) -> None:
    name, root = source
    experiment = Experiment(
        name="learning",
        rounds=1,
        data=Data(name=name, examples=NUM_IMAGES),
        partition=Iid(clients=2),
        model=Model(encoder=encoder),
        local=LocalTraining(lr=0.02, epochs=3, batch_size=32),
    )
    assembly = assemble(experiment, data_root=root)
    initial = assembly.initial()
    before = loss_of(assembly, initial)
    (done,) = federate(InProcess(assembly.clients), initial, assembly.plan())
    after = loss_of(assembly, done.model)
    print(f"{name} {encoder}: loss {before:.3f} before, {after:.3f} after")
    assert not done.rejected
    assert (done.num_examples, done.model.params.keys()) == (NUM_IMAGES, initial.params.keys())
    assert after < before
