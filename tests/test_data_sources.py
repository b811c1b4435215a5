"""Loaders on small files in the official formats, the cache, preparation and augmentation."""

import json
import time

import numpy as np
import pytest
import torch

import spherefed.data.idx
from data_files import (
    cifar10_members,
    cifar100_files,
    cifar100_members,
    cifar_batch,
    fashion_members,
    image_bytes,
    image_folder,
    pickled,
    tar_of,
    tiny_members,
    write_fashion,
    write_tree,
    zip_of,
)
from spherefed.data.augment import CropFlip
from spherefed.data.catalog import check_dataset, list_datasets
from spherefed.data.cifar import load_cifar
from spherefed.data.dataset import channel_statistics
from spherefed.data.examples import Preparation
from spherefed.data.images import decode_image
from spherefed.data.pickles import read_cifar_pickle
from spherefed.data.place import data_root
from spherefed.data.sources import SOURCES, load
from spherefed.data.tiny_imagenet import load_tiny_imagenet
from spherefed.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _no_debian_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(spherefed.data.idx, "DEBIAN_FOLDER", tmp_path / "debian")


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


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["root", "sub", "debian"])
def test_fashion_mnist_is_found_in_three_places(tmp_path, packed, place, monkeypatch):
    root = tmp_path / "root"
    folder = write_fashion(fashion_members(), tmp_path / "made", packed)
    target = {"root": root, "sub": root / "fashion-mnist", "debian": tmp_path / "debian"}[place]
    target.parent.mkdir(exist_ok=True)
    folder.rename(target)
    dataset = load("fashion-mnist", root)
    assert dataset.input_shape == (1, 28, 28)
    assert (len(dataset.train), len(dataset.test)) == (12, 6)
    assert dataset.train.labels.tolist() == [*range(10), 0, 1]
    assert dataset.augment is None
    assert dataset.provenance["official"] == "no"


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


@pytest.mark.parametrize("mode", ["L", "RGBA", "RGB"])
def test_images_of_any_mode_become_rgb(mode):
    assert decode_image(image_bytes(mode=mode, kind="PNG"), "x").shape == (3, 64, 64)


def test_arrays_and_digits_still_load(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((10, 4, 4), np.uint8), labels=np.arange(10) % 3)
    dataset = load(f"arrays:{tmp_path / 'a.npz'}")
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (8, 2, 3)
    digits = load("digits")
    assert (len(digits.train), len(digits.test)) == (SOURCES["digits"].num_train, SOURCES["digits"].num_test)


@pytest.mark.parametrize("name", ["cifar1000", "folder:", "arrays:", ""])
def test_unknown_names_are_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match="allowed: cifar100"):
        load(name)


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.remotes])
def test_a_missing_data_set_says_what_to_run_and_where_to_put_which_file(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    for words in (str(tmp_path), f"spherefed data get {name}", SOURCES[name].remotes[0].name):
        assert words in str(caught.value)


def test_data_root_prefers_argument_then_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("SPHEREFED_DATA")
    assert data_root().name == "spherefed"


def test_list_says_what_is_present(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    listed = {entry.name: entry for entry in list_datasets(tmp_path)}
    assert set(listed) == set(SOURCES)
    assert listed["fashion-mnist"].found == tmp_path / "fashion-mnist"
    assert listed["cifar100"].found is None
    assert (listed["cifar100"].num_classes, listed["cifar100"].num_train) == (100, 50_000)


def test_check_counts_and_measures(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    found = check_dataset("fashion-mnist", tmp_path)
    assert found.train_counts == (2, 2, 1, 1, 1, 1, 1, 1, 1, 1)
    assert (found.num_train, found.num_test, found.official) == (12, 6, False)
    pixels = load("fashion-mnist", tmp_path).train.inputs.double() / 255
    assert found.mean[0] == pytest.approx(float(pixels.mean()))
    assert found.std[0] == pytest.approx(float(pixels.std(correction=0)))
    assert check_dataset("digits").mean[0] > 0


def test_channel_statistics_equal_numpy():
    images = np.random.default_rng(0).integers(256, size=(1500, 3, 5, 4), dtype=np.uint8)
    mean, std = channel_statistics(images)
    assert np.allclose(mean, (images / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(std, (images / 255).std(axis=(0, 2, 3)))


# The cache


def test_the_second_load_reads_only_the_cache(tmp_path, monkeypatch):
    members = cifar100_members()
    tar_of(members, tmp_path / "cifar-100-python.tar.gz")
    first = load_cifar(cifar100_files(members), tmp_path)
    monkeypatch.setattr("spherefed.data.cifar._decode", lambda *_: pytest.fail("decoded again"))
    second = load_cifar(cifar100_files(members), tmp_path)
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.classes == second.classes
    assert first.provenance == second.provenance
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]


def test_a_changed_source_is_decoded_again(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    assert len(load("fashion-mnist", tmp_path).train) == 12
    time.sleep(0.01)
    members = fashion_members()
    half = {"train-images-idx3-ubyte": members["t10k-images-idx3-ubyte"]}
    half["train-labels-idx1-ubyte"] = members["t10k-labels-idx1-ubyte"]
    write_fashion(members | half, tmp_path)
    assert len(load("fashion-mnist", tmp_path).train) == 6


@pytest.mark.parametrize("damage", ["truncated", "missing", "facts", "not an array"])
def test_a_damaged_cache_is_made_again(tmp_path, damage):
    write_fashion(fashion_members(), tmp_path)
    before = load("fashion-mnist", tmp_path).train.inputs.clone()
    (folder,) = (tmp_path / "cache").iterdir()
    images = folder / "train_images.npy"
    match damage:
        case "truncated":
            images.write_bytes(images.read_bytes()[:-100])
        case "missing":
            images.unlink()
        case "facts":
            (folder / "facts.json").write_text("{", encoding="utf-8")
        case "not an array":
            images.write_bytes(b"no")
    assert torch.equal(load("fashion-mnist", tmp_path).train.inputs, before)


def test_writing_to_mapped_pixels_does_not_reach_the_file(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    first = load("fashion-mnist", tmp_path)
    before = first.train.inputs.clone()
    first.train.inputs.zero_()
    assert torch.equal(load("fashion-mnist", tmp_path).train.inputs, before)


def test_a_cache_that_cannot_be_written_is_a_data_error(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(DataError, match="--data-root"):
        load("fashion-mnist", tmp_path)


def test_facts_are_plain_json(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    load("fashion-mnist", tmp_path)
    (facts,) = (tmp_path / "cache").glob("*/facts.json")
    assert json.loads(facts.read_text(encoding="utf-8"))["provenance"]["train"] == "12"


def test_the_unpickler_returns_plain_values():
    value = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"x": (b"a", None)}
    found = read_cifar_pickle(pickled(value), "x")
    assert np.array_equal(found["data"], value[b"data"])
    assert found["labels"] == [1, 2]


# Preparation and augmentation


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_preparation_is_the_formula_and_leaves_its_input_alone(dtype):
    inputs = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(dtype)
    before = inputs.clone()
    prepare = Preparation(scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    out = prepare(inputs)
    for channel in range(3):
        expected = (before[:, channel].double() / 255 - prepare.mean[channel]) / prepare.std[channel]
        assert torch.allclose(out[:, channel].double(), expected, atol=1e-5)
    assert out.dtype == torch.float32
    assert torch.equal(inputs, before)


def test_preparation_refuses_a_zero_deviation():
    with pytest.raises(ConfigError, match="std"):
        Preparation(scale=1.0, mean=(0.0,), std=(0.0,))


def crop_flip_one_by_one(inputs, padding, flip, rng):
    """The same draws, image by image."""
    num, channels, height, width = inputs.shape
    num_shifts = 2 * padding + 1
    out = torch.empty_like(inputs)
    for i, draw in enumerate(rng.integers(num_shifts**2 * 2, size=num).tolist()):
        place, mirrored = draw // 2, draw % 2
        canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=inputs.dtype)
        canvas[:, padding : padding + height, padding : padding + width] = inputs[i]
        row, column = place // num_shifts, place % num_shifts
        window = canvas[:, row : row + height, column : column + width]
        out[i] = window.flip(-1) if mirrored and flip else window
    return out


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(7, 3, 32, 32), (5, 1, 9, 6), (0, 3, 8, 8), (1, 3, 64, 64)])
def test_augmentation_equals_image_by_image(padding, flip, shape):
    inputs = torch.from_numpy(np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8))
    before = inputs.clone()
    out = CropFlip(padding=padding, flip=flip)(inputs, np.random.default_rng(2))
    assert torch.equal(out, crop_flip_one_by_one(inputs, padding, flip, np.random.default_rng(2)))
    assert out.dtype == torch.uint8
    assert torch.equal(inputs, before)


def test_augmentation_reaches_every_place_equally_often():
    image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    image[0, 0, 2, 1] = 1
    out = CropFlip(padding=1)(image.expand(18_000, 1, 5, 5), np.random.default_rng(0))
    places = out.reshape(len(out), -1).float().argmax(dim=1)
    counts = torch.bincount(places)
    # Rows 1..3; columns 0..2 and their mirror images 2..4, column 2 of both kinds.
    assert counts.nonzero().flatten().tolist() == [r * 5 + c for r in (1, 2, 3) for c in range(5)]
    assert (counts[[5, 6, 8, 9]] - 1000).abs().max() < 150
    assert abs(int(counts[7]) - 2000) < 200


def test_augmentation_is_refused_with_negative_padding():
    with pytest.raises(ConfigError, match="negative"):
        CropFlip(padding=-1)


def test_augmentation_and_preparation_are_fast():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        inputs = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
        rng, augment = np.random.default_rng(0), CropFlip()
        prepare = Preparation(scale=1 / 255, mean=(0.5,) * 3, std=(0.2,) * 3)
        times = []
        for _ in range(60):
            start = time.perf_counter()
            prepare(augment(inputs, rng))
            times.append(time.perf_counter() - start)
        # The best of many: a busy machine slows some down, never all. Measured: 0.3 ms.
        assert min(times) < 0.8e-3
    finally:
        torch.set_num_threads(threads)
