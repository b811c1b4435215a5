"""A data set as loaded, and the checks that every data set passes before anybody trains on it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spherefed.data.examples import Augment, Examples
from spherefed.errors import DataError
from spherefed.rng import Purpose, stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A data set as loaded: training and test examples, class names, and where it came from."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    augment: Augment | None = None
    """Applied to training batches only; None for data sets that are trained as they are."""
    mapped: bool = False
    """Whether the inputs are mapped from files, which other processes can map for themselves by loading it again."""
    numbered: bool = False
    """Whether the files have numbers for classes and no names, so that `classes` are but those numbers."""
    elsewhere: bool = False
    """Whether the examples are where the clients are, and only the form of them is known here."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Facts about the files (digests, counts, whether they are the official ones), stored with a run."""

    def __post_init__(self) -> None:
        for part, examples in () if self.elsewhere else (("train", self.train), ("test", self.test)):
            check_examples(examples, num_classes=len(self.classes), where=f"data set {self.name!r}, {part} part")
        shapes = tuple(self.train.inputs.shape[1:]), tuple(self.test.inputs.shape[1:])
        if shapes[0] != shapes[1]:
            raise DataError(
                f"data set {self.name!r}: training inputs have shape {shapes[0]}, test inputs {shapes[1]}; "
                "both parts need the same shape"
            )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    def facts(self) -> dict[str, Any]:
        """What a run keeps of its data set."""
        return {
            "name": self.name,
            "classes": list(self.classes),
            "input_shape": list(self.input_shape),
            "num_train": len(self.train),
            "num_test": len(self.test),
            "provenance": self.provenance,
        }


def check_examples(examples: Examples, *, num_classes: int, where: str) -> None:
    """Refuse what would fail, or silently mislead, in the middle of a run."""
    inputs, labels = examples.inputs, examples.labels
    if len(inputs) != len(labels):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(labels)} labels; each input needs one label")
    if len(labels) == 0:
        raise DataError(f"{where}: no examples")
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        index = int(bad[0])
        raise DataError(f"{where}: label {int(labels[index])} at index {index} is outside 0..{num_classes - 1}")
    if inputs.is_floating_point():
        broken = (~inputs.reshape(len(inputs), -1).isfinite().all(dim=1)).nonzero()
        if len(broken):
            raise DataError(f"{where}: input {int(broken[0])} holds NaN or infinity ({len(broken)} such inputs)")


def fixed_split(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(train, test) positions for a set without an official split: a fifth for testing, the same for every seed."""
    order = torch.from_numpy(stream(0, Purpose.SPLIT).permutation(size))
    num_test = max(1, size // 5)
    return order[num_test:], order[:num_test]


def channel_statistics(images: "NDArray[np.uint8]") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of (n, channels, h, w) bytes, as fractions of 255.

    Exact up to the last division: pixels are counted by value in integers, whatever the size of the set.

    >>> channel_statistics(np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    num_channels = images.shape[1]
    counts = np.zeros((num_channels, 256), dtype=np.int64)
    for start in range(0, len(images), 1024):
        for channel in range(num_channels):
            counts[channel] += np.bincount(images[start : start + 1024, channel].ravel(), minlength=256)
    values = np.arange(256) / 255.0
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(float(m) for m in mean), tuple(float(s) for s in std)
