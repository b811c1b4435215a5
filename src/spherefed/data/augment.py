"""Data augmentation of training batches, applied to the stored bytes before they are converted to floats."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spherefed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class CropFlip:
    """Random crop after zero padding, then a horizontal flip with probability ½, independently for each image.

    The standard augmentation for CIFAR and TinyImageNet. Borders are zeros before normalization, as in torchvision's
    `RandomCrop`. One random number per image determines row, column and flip.
    """

    padding: int = 4
    """Pixels added on every side before the crop to the original size; 0 disables the crop."""
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ConfigError(f"padding must not be negative, got {self.padding}")

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Inputs (n, channels, height, width) in CPU memory → a new tensor of the same shape and dtype."""
        num, _, height, width = inputs.shape
        num_shifts = 2 * self.padding + 1
        draws = rng.integers(num_shifts**2 * 2, size=num)
        shifts, flips = np.divmod(draws, 2)
        rows, columns = np.divmod(shifts, num_shifts)
        padded = pad(inputs, (self.padding,) * 4).numpy()
        # A view of all windows of all images; indexing it copies one window per image. On bytes, numpy does this three
        # times as fast as torch.
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        crops = windows[np.arange(num), :, rows, columns]
        if self.flip:
            flipped = np.flatnonzero(flips)
            crops[flipped] = crops[flipped, :, :, ::-1]
        return torch.from_numpy(crops)
