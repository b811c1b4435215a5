"""The list of data sets, and what a check counts and measures."""

from dataclasses import replace
from functools import partial

import pytest

from spherefed.data.catalog import check_dataset, list_datasets
from spherefed.data.cifar import find_cifar, load_cifar
from spherefed.data.sources import SOURCES, load
from spherefed.data.tiny_imagenet import load_tiny_imagenet
from support.data_files import (
    cifar100_files,
    cifar100_members,
    fashion_members,
    tar_of,
    tiny_members,
    write_fashion,
    zip_of,
)

pytestmark = pytest.mark.usefixtures("no_debian_folder")


def test_list_says_what_is_present(tmp_path):
    write_fashion(fashion_members(), tmp_path)
    listed = {entry.name: entry for entry in list_datasets(tmp_path)}
    assert set(listed) == set(SOURCES)
    assert listed["fashion-mnist"].path == tmp_path / "fashion-mnist"
    assert listed["cifar100"].path is None
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


@pytest.mark.parametrize(
    ("name", "official", "said"),
    [
        ("cifar100", True, "packed by somebody else; the files inside are those published"),
        ("tiny-imagenet", False, "packed by somebody else; its contents were not compared with those published"),
    ],
)
def test_what_a_check_says_of_an_archive_agrees_with_what_it_says_of_the_files(
    name, official, said, tmp_path, monkeypatch
):
    if name == "cifar100":
        members = cifar100_members()
        files = cifar100_files(members)
        tar_of(members, tmp_path / "cifar-100-python.tar.xz")
        source = replace(SOURCES[name], load=partial(load_cifar, files), find=partial(find_cifar, files))
    else:
        zip_of(tiny_members(), tmp_path / "tiny-imagenet-200.zip")
        source = replace(SOURCES[name], load=partial(load_tiny_imagenet, num_classes=2))
    monkeypatch.setitem(SOURCES, name, replace(source, remotes=()))
    found = check_dataset(name, tmp_path)
    assert found.official == official
    assert found.provenance["archive"] == said
