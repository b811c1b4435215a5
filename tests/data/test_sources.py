"""Data sets by name: what names are known, and that they load."""

import numpy as np
import pytest

from spherefed.data.in_memory import dataset_in_memory
from spherefed.data.sources import SOURCES, load
from spherefed.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("no_debian_folder")


def test_arrays_and_digits_still_load(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((10, 4, 4), np.uint8), labels=np.arange(10) % 3)
    dataset = load(f"arrays:{tmp_path / 'a.npz'}")
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (8, 2, 3)
    digits = load("digits")
    assert (len(digits.train), len(digits.test)) == (SOURCES["digits"].num_train, SOURCES["digits"].num_test)


ONE_CLASS = (np.ones((10, 4), np.float32), np.zeros(10, np.int64))


def one_class():
    return ONE_CLASS


def loaded_one_class():
    return dataset_in_memory(ONE_CLASS, min_classes=1)


@pytest.mark.parametrize("kind", ["arrays", "table", "one_class", "loaded_one_class"])
def test_a_single_class_is_refused_except_at_a_site(kind, tmp_path):
    np.savez(tmp_path / "mine.npz", images=ONE_CLASS[0], labels=ONE_CLASS[1])
    (tmp_path / "mine.csv").write_text("age,label\n" + "3.5,0\n" * 10)
    files = {"arrays": f"arrays:{tmp_path / 'mine.npz'}", "table": f"table:{tmp_path / 'mine.csv'}"}
    name = files.get(kind, f"{__name__}:{kind}")
    if kind == "table":
        pytest.importorskip("pandas")
    with pytest.raises(DataError, match="a classifier needs at least 2 classes, got only '0'; add examples of others"):
        load(name)
    assert load(name, min_classes=1).classes == ("0",)


@pytest.mark.parametrize("kind", ["arrays", "table", "memory"])
def test_numbers_beyond_float32_are_named(kind, tmp_path, recwarn):
    inputs, labels = np.ones((10, 2)), np.arange(10) % 2
    inputs[7, 1] = -1e300
    np.savez(tmp_path / "mine.npz", images=inputs, labels=labels)
    rows = [f"{x},{y},{label}" for (x, y), label in zip(inputs.tolist(), labels, strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,dose,label", *rows]))
    if kind == "table":
        pytest.importorskip("pandas")
    calls = {
        "arrays": lambda: load(f"arrays:{tmp_path / 'mine.npz'}"),
        "table": lambda: load(f"table:{tmp_path / 'mine.csv'}"),
        "memory": lambda: dataset_in_memory((inputs, labels)),
    }
    with pytest.raises(DataError, match=r"input 7 \(counted from 0\) contains -1e\+300, beyond the range of float32"):
        calls[kind]()
    assert not recwarn.list


@pytest.mark.parametrize("name", ["cifar1000", "folder:", "arrays:", ""])
def test_unknown_names_are_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match="allowed: cifar100"):
        load(name)
