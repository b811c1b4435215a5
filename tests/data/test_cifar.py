"""CIFAR-10 and CIFAR-100 from small files in the official format."""

import pytest
import torch

from spherefed.data.augment import CropFlip
from spherefed.data.cifar import load_cifar
from support.data_files import (
    cifar10_members,
    cifar100_files,
    cifar100_members,
    cifar_batch,
    tar_of,
    write_tree,
)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz", ".tar", ""])
def test_cifar100_reads_every_packing_to_the_same_pixels(tmp_path, suffix):
    members = cifar100_members()
    if suffix:
        tar_of(members, tmp_path / f"cifar-100-python{suffix}")
    else:
        write_tree(members, tmp_path / "cifar-100-python")
    dataset = load_cifar(cifar100_files(members), tmp_path)
    batch = cifar_batch(20)
    assert torch.equal(dataset.train.inputs.reshape(20, -1), torch.from_numpy(batch[b"data"]))
    assert dataset.train.labels.tolist() == batch[b"fine_labels"]
    assert dataset.input_shape == (3, 32, 32)
    assert len(dataset.test) == 5
    assert dataset.classes[7] == "class 7"
    assert dataset.provenance["official"] == "yes"
    assert dataset.augment == CropFlip()


def test_cifar10_joins_its_five_batches_in_order(tmp_path):
    members, files = cifar10_members()
    tar_of(members, tmp_path / "cifar-10-python.tar.gz", folder="cifar-10-batches-py")
    dataset = load_cifar(files, tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (20, 5, 10)
    third = cifar_batch(4, 10, 2, b"labels")
    assert torch.equal(dataset.train.inputs[8:12].reshape(4, -1), torch.from_numpy(third[b"data"]))
    assert dataset.classes[3] == "class 3"
