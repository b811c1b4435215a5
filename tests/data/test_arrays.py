"""The digits of scikit-learn and the user's own arrays."""

import torch

from spherefed.data.arrays import digits


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
