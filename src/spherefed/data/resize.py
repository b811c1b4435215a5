"""Smaller images by the exact mean over areas: every output pixel is the mean of the input area that it covers.

Where the sizes divide (32 → 16) this is the mean of whole blocks; otherwise a pixel on a border counts with the
fraction of its area that lies inside. Bytes stay bytes, rounded to the nearest integer, halves up.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherefed.data.augment import CropFlip
from spherefed.data.cache import DecodedInfo, load_decoded, new_array, save_array
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Examples
from spherefed.errors import ConfigError

BLOCK = 2048
"""Images that are converted at once: a few megabytes as floats."""


def resized(data: Dataset, size: int, root: Path) -> Dataset:
    """The data set with images of size × size pixels; the padding of random crops shrinks in proportion.

    Memory-mapped images are resized once and stored in the cache of the data root, like decoded ones.
    """
    if len(data.input_shape) != 3:
        raise ConfigError(f"data.resize needs images (channels, height, width); {data.name} has {data.input_shape}")
    height, width = data.input_shape[1:]
    if size > min(height, width):
        raise ConfigError(
            f"data.resize makes images smaller; {data.name} has {height}×{width} pixels, got {size}; "
            f"at most {min(height, width)} is possible"
        )
    if (height, width) == (size, size):
        return data
    augment = data.augment
    if isinstance(augment, CropFlip):
        augment = replace(augment, padding=round(augment.padding * size / height))
    parts = {"train": data.train, "test": data.test}
    if data.cache_folder is not None:
        images = _cached(data, size, root)
    else:
        images = {name: torch.from_numpy(area_mean(part.inputs.numpy(), size)) for name, part in parts.items()}
    train, test = (Examples(images[name], part.labels, part.prepare) for name, part in parts.items())
    provenance = {**data.provenance, "resized": f"area mean, {height}×{width} to {size}×{size}"}
    return replace(data, train=train, test=test, augment=augment, provenance=provenance)


def area_mean(images: "NDArray[Any]", size: int) -> "NDArray[Any]":
    """Images (n, channels, height, width) → (n, channels, size, size) of the same dtype.

    >>> area_mean(np.array([[1.0, 3.0], [5.0, 7.0]], dtype=np.float32).reshape(1, 1, 2, 2), 1)
    array([[[[4.]]]], dtype=float32)
    """
    rows, columns = (area_weights(length, size) for length in images.shape[2:])
    output = np.empty((*images.shape[:2], size, size), dtype=images.dtype)
    for start in range(0, len(images), BLOCK):
        # In float64, so that rounding errors are far below the 1e-9 that makes sure of halves.
        means = rows @ images[start : start + BLOCK].astype(np.float64) @ columns.T
        is_integer = images.dtype.kind in "ui"
        output[start : start + BLOCK] = np.floor(means + 0.5 + 1e-9) if is_integer else means
    return output


def area_weights(length: int, size: int) -> "NDArray[np.float64]":
    """Weights (size, length): the share of input pixel j in output pixel i along one axis; every row sums to 1.

    >>> area_weights(3, 2) * 3
    array([[2., 1., 0.],
           [0., 1., 2.]])
    """
    edges = np.arange(size + 1) * length  # in units of 1/size pixel: integers, so overlaps are exact
    starts = np.arange(length) * size
    overlap = np.minimum(edges[1:, None], starts + size) - np.maximum(edges[:-1, None], starts)
    weights: NDArray[np.float64] = np.maximum(overlap, 0) / length
    return weights


def _cached(data: Dataset, size: int, root: Path) -> dict[str, Tensor]:
    """The resized images from the cache; the key names the files of the full-size ones."""

    def write(folder: Path) -> DecodedInfo:
        for name, part in (("train", data.train), ("test", data.test)):
            images = part.inputs.numpy()
            target = new_array(folder, f"{name}_images", (*images.shape[:2], size, size))
            for start in range(0, len(images), BLOCK):
                target[start : start + BLOCK] = area_mean(images[start : start + BLOCK], size)
            save_array(folder, f"{name}_labels", part.labels.numpy())
        return DecodedInfo(classes=data.classes, provenance=data.provenance)

    assert data.cache_folder is not None, "memory-mapped images lie in a cache folder"
    files = [data.cache_folder / f"{part}_images.npy" for part in ("train", "test")]
    cached = load_decoded(root, f"{data.name.partition(':')[0]}-{size}px", files, write)
    return {part: cached.arrays[f"{part}_images"] for part in ("train", "test")}
