"""Statistics of a data set's channels."""

import numpy as np

from spherefed.data.dataset import channel_statistics


def test_channel_statistics_equal_numpy():
    images = np.random.default_rng(0).integers(256, size=(1500, 3, 5, 4), dtype=np.uint8)
    mean, std = channel_statistics(images)
    assert np.allclose(mean, (images / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(std, (images / 255).std(axis=(0, 2, 3)))
