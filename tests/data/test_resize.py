"""`data.resize` against a loop over pixels, its cache, and the crops that follow the size."""

from pathlib import Path

import numpy as np
import pytest
import torch

from spherefed.assembly import load_data
from spherefed.data.augment import CropFlip
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.data.resize import area_mean, resized
from spherefed.data.sources import load
from spherefed.errors import ConfigError
from spherefed.experiment import with_settings
from spherefed.nn.encoders import ConvNet
from spherefed.recipes.experiments import digits


def loop_mean(image: np.ndarray, size: int) -> np.ndarray:
    """One channel, pixel by pixel: the image is blown up `size` times, so that every area is whole pixels."""
    height, width = image.shape
    blown = image.astype(np.float64).repeat(size, axis=0).repeat(size, axis=1)
    means = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            means[i, j] = blown[i * height : (i + 1) * height, j * width : (j + 1) * width].sum() / (height * width)
    return means


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 16), (8, 8, 5), (7, 9, 3), (6, 6, 6), (5, 4, 1)])
def test_every_pixel_is_the_mean_of_its_area(height: int, width: int, size: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((3, 2, height, width)).astype(np.float32)
    expected = np.array([[loop_mean(channel, size) for channel in image] for image in images])
    np.testing.assert_allclose(area_mean(images, size), expected, rtol=1e-6)
    pixels = rng.integers(256, size=(3, 2, height, width), dtype=np.uint8)
    expected = np.array([[loop_mean(channel, size) for channel in image] for image in pixels])
    assert area_mean(pixels, size).dtype == np.uint8
    assert np.array_equal(area_mean(pixels, size), np.floor(expected + 0.5 + 1e-9))


def test_halves_are_rounded_up() -> None:
    pixels = np.array([[1, 2], [2, 1]], dtype=np.uint8).reshape(1, 1, 2, 2)
    assert area_mean(pixels, 1).item() == 2


def image_folder(root: Path) -> Path:
    from PIL import Image

    rng = np.random.default_rng(1)
    for name in ("cat", "dog"):
        (root / "pictures" / name).mkdir(parents=True)
        for index in range(5):
            pixels = rng.integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "pictures" / name / f"{index}.png")
    return root / "pictures"


def test_decoded_images_are_resized_once_and_memory_mapped(tmp_path: Path) -> None:
    name = f"folder:{image_folder(tmp_path)}"
    full, small = load(name, tmp_path), load(name, tmp_path, resize=4)
    assert np.array_equal(small.train.inputs.numpy(), area_mean(full.train.inputs.numpy(), 4))
    assert np.array_equal(small.test.inputs.numpy(), area_mean(full.test.inputs.numpy(), 4))
    assert torch.equal(small.train.labels, full.train.labels)
    assert small.memory_mapped
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
    assert any("folder-8bit-4px" in str(path) for path in written)
    load(name, tmp_path, resize=4)
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}


def test_the_padding_of_crops_follows_the_size(tmp_path: Path) -> None:
    examples = Examples(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    data = Dataset(name="x", train=examples, test=examples, classes=("a", "b"), augment=CropFlip(padding=4))
    assert resized(data, 16, tmp_path).augment == CropFlip(padding=2)
    assert resized(data, 32, tmp_path) is data


def test_an_experiment_says_the_size_and_its_digest_changes_only_then() -> None:
    small = with_settings(digits(), ["data.resize=4"])
    assert load_data(small, None).input_shape == (1, 4, 4)
    assert small.digest() != digits().digest()
    with pytest.raises(ConfigError, match=r"data\.resize makes images smaller; digits has 8×8 pixels, got 9"):
        load_data(with_settings(digits(), ["data.resize=9"]), None)
    with pytest.raises(ConfigError, match=r"data\.resize must be at least 1"):
        with_settings(digits(), ["data.resize=0"])


def test_the_convnet_reads_images_of_half_the_size() -> None:
    assert ConvNet().build((3, 16, 16))(torch.zeros(2, 3, 16, 16)).shape == (2, 256)
