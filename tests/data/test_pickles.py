"""The restricted reader of CIFAR's pickles; `test_damaged_files.py` has the hostile ones."""

import numpy as np

from spherefed.data.pickles import read_cifar_pickle
from support.data_files import (
    pickled,
)


def test_the_unpickler_returns_plain_values():
    value = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"x": (b"a", None)}
    found = read_cifar_pickle(pickled(value), "x")
    assert np.array_equal(found["data"], value[b"data"])
    assert found["labels"] == [1, 2]
