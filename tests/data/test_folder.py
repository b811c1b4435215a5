"""A folder of the user's own images."""

import numpy as np
import pytest
import torch
from PIL import Image

from spherefed.data.sources import load
from spherefed.errors import ConfigError, DataError
from support.data_files import (
    image_folder,
    write_tree,
)


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_folder_with_parts_keeps_them(tmp_path, test_name):
    image_folder(tmp_path / "mine" / "train")
    image_folder(tmp_path / "mine" / test_name, per_class=2)
    dataset = load(f"folder:{tmp_path / 'mine'}", tmp_path / "root")
    assert (len(dataset.train), len(dataset.test)) == (10, 4)
    assert dataset.classes == ("cat", "dog")
    assert dataset.input_shape == (3, 8, 6)
    prepared, _ = next(dataset.train.in_order(10, device=torch.device("cpu")))
    assert prepared.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (prepared.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_folder_without_parts_holds_a_fixed_fifth_out(tmp_path):
    image_folder(tmp_path / "mine", per_class=10)
    write_tree({"cat/.hidden": b"ignored"}, tmp_path / "mine")
    first = load(f"folder:{tmp_path / 'mine'}", tmp_path / "a")
    second = load(f"folder:{tmp_path / 'mine'}", tmp_path / "b")
    assert (len(first.train), len(first.test)) == (16, 4)
    assert torch.equal(first.test.inputs, second.test.inputs)


def test_images_of_different_sizes_need_resize(tmp_path):
    for name, sides in (("cat", [(8, 6), (9, 9), (4, 5)]), ("dog", [(6, 6), (12, 4), (7, 5)])):
        for index, (height, width) in enumerate(sides):
            pixels = np.full((height, width, 3), 10 * height, dtype=np.uint8)
            path = tmp_path / "mine" / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    name = f"folder:{tmp_path / 'mine'}"
    with pytest.raises(DataError, match=r"pixels, the others are .*set data\.resize"):
        load(name, tmp_path / "root")
    made = load(name, tmp_path / "root", resize=4)
    assert made.input_shape == (3, 4, 4)
    values = sorted(int(image.unique()) for part in (made.train, made.test) for image in part.inputs)
    assert values == [40, 60, 70, 80, 90, 120]  # the area mean of equal pixels is their value
    with pytest.raises(ConfigError, match=r"makes images smaller, and .*png has .* at most 4 is possible"):
        load(name, tmp_path / "root", resize=5)
