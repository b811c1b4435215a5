"""Tiny ImageNet from small files in the official format."""

import numpy as np
import pytest
import torch

from spherefed.data.images import decode_image
from spherefed.data.tiny_imagenet import load_tiny_imagenet
from support.data_files import (
    tiny_members,
    write_tree,
    zip_of,
)


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet_reads_zip_and_folder_alike(tmp_path, packed):
    members = tiny_members()
    if packed:
        zip_of(members, tmp_path / "tiny-imagenet-200.zip")
    else:
        write_tree(members, tmp_path / "tiny-imagenet-200")
    dataset = load_tiny_imagenet(tmp_path, num_classes=2)
    assert dataset.classes == ("goldfish", "bullfrog")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [1, 0, 1, 0]
    assert dataset.provenance["official"] == "no"
    assert dataset.provenance["train"] == "6"
    assert dataset.provenance["train per class"] == "3 to 3"
    grey = dataset.train.inputs[3]
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[0], grey[2])
    expected = decode_image(members["train/n01/images/n01_1.JPEG"], "x")
    assert np.array_equal(dataset.train.inputs[1].numpy(), expected)
