"""The digits of scikit-learn and the user's own arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch

from spherefed.data.arrays import arrays, digits
from spherefed.errors import DataError


def test_the_digits_are_split_once_and_for_all() -> None:
    from sklearn.datasets import load_digits

    first, again = digits(), digits()
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.labels, again.test.labels)
    assert (len(first.train), len(first.test)) == (1438, 359)
    assert first.input_shape == (1, 8, 8)
    assert first.num_classes == 10
    together = torch.cat([first.train.inputs, first.test.inputs]).flatten(1)
    raw = torch.from_numpy(load_digits().data / 16).float()
    assert torch.equal(together.sort(dim=0).values, raw.sort(dim=0).values)  # the same pixels, none lost or doubled
    assert set(first.test.labels.tolist()) == set(range(10))


@pytest.mark.parametrize("shape", [(16, 16, 3), (16, 20, 4), (28, 28, 1)])
def test_bytes_with_channels_last_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    images, labels = np.zeros((6, *shape), np.uint8), np.arange(6) % 2
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    with pytest.raises(DataError, match=r"looks like channels last.*images\.transpose\(0, 3, 1, 2\)"):
        arrays(tmp_path / "mine.npz")
    np.savez(tmp_path / "mine.npz", images=images.transpose(0, 3, 1, 2), labels=labels)
    assert arrays(tmp_path / "mine.npz").input_shape == (shape[2], *shape[:2])


@pytest.mark.parametrize("shape", [(3, 16, 3), (1, 8, 4), (2, 16, 16), (6, 128, 1)])
def test_bytes_with_channels_first_keep_their_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((6, *shape), np.uint8), labels=np.arange(6) % 2)
    assert arrays(tmp_path / "mine.npz").input_shape == shape
