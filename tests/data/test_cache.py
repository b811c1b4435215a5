"""The cache of decoded images: read instead of the source, made again when the source or the cache changed."""

import json
import os
import time

import pytest
import torch

from spherefed.data.cifar import load_cifar
from spherefed.data.sources import load
from spherefed.errors import DataError
from support.data_files import (
    cifar100_files,
    cifar100_members,
    fashion_members,
    tar_of,
    write_fashion,
)

pytestmark = pytest.mark.usefixtures("no_debian_folder")


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


def test_a_source_of_the_same_size_that_was_written_later_is_decoded_again(tmp_path):
    def write(value, seconds):
        members = fashion_members()
        name = "train-images-idx3-ubyte"
        members[name] = members[name][:-1] + bytes([value])
        write_fashion(members, tmp_path, packed=False)
        for path in tmp_path.rglob("*ubyte"):
            os.utime(path, (seconds, seconds))
        return {path.name: path.stat().st_size for path in tmp_path.rglob("*ubyte")}

    sizes = write(3, seconds=1000)
    assert int(load("fashion-mnist", tmp_path).train.inputs.flatten()[-1]) == 3
    assert write(4, seconds=2000) == sizes
    assert int(load("fashion-mnist", tmp_path).train.inputs.flatten()[-1]) == 4


@pytest.mark.parametrize("damage", ["truncated", "missing", "info", "not an array"])
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
        case "info":
            (folder / "info.json").write_text("{", encoding="utf-8")
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


def test_the_description_of_a_cache_is_plain_json(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    load("fashion-mnist", tmp_path)
    (summary,) = (tmp_path / "cache").glob("*/info.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["provenance"]["train"] == "12"
