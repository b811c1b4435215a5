"""Data sets by name: what names are known, and that they load."""

import numpy as np
import pytest

from spherefed.data.sources import SOURCES, load
from spherefed.errors import ConfigError

pytestmark = pytest.mark.usefixtures("no_debian_folder")


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
