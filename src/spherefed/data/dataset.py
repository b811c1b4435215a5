"""The type of a loaded data set, and the checks that every data set must pass."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError, DataError
from spherefed.rng import Purpose, stream


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A loaded data set: training and test examples, class names, and provenance."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    augment: Augment | None = None
    """Augmentation of training batches, or None."""
    memory_mapped: bool = False
    """Whether the inputs are memory-mapped files. Another process then loads the data set itself."""
    cache_folder: Path | None = None
    """The folder of the memory-mapped files, or None."""
    unnamed_classes: bool = False
    """Whether the files contain class numbers but no class names. Then `classes` are these numbers as text."""
    remote: bool = False
    """Whether the examples are stored at the clients, so that only classes and input shape are known here."""
    columns: dict[str, "NDArray[Any]"] = field(default_factory=dict)
    """Further values of the stored training examples, such as where they come from, for partition 'by-column'."""
    test_columns: dict[str, "NDArray[Any]"] = field(default_factory=dict)
    """The same values of the stored test examples, if the data have them; `pooled` needs them."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Facts about the files (digests, counts, whether they are the official ones), stored with a run."""

    def __post_init__(self) -> None:
        for part, examples in () if self.remote else (("train", self.train), ("test", self.test)):
            check_examples(examples, num_classes=self.num_classes, where=f"data set {self.name!r}, {part} part")
        test_shape = tuple(self.test.inputs.shape[1:])
        if test_shape != self.input_shape:
            raise DataError(
                f"data set {self.name!r}: training inputs have shape {self.input_shape}, test inputs {test_shape}; "
                "both parts need the same shape"
            )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    @property
    def input_dtype(self) -> str:
        """The type of numbers that the encoder gets: int64 for token ids."""
        return "int64" if self.train.prepare is None and self.train.inputs.dtype == torch.int64 else "float32"

    def description(self) -> dict[str, Any]:
        """The description of the data set that a run stores."""
        return {
            "name": self.name,
            "classes": list(self.classes),
            "input_shape": list(self.input_shape),
            "input_dtype": self.input_dtype,
            "normalization": None if self.train.prepare is None else asdict(self.train.prepare),
            "num_train": len(self.train),
            "num_test": len(self.test),
            "provenance": self.provenance,
        }


def check_examples(examples: Examples, *, num_classes: int, where: str) -> None:
    """Raise DataError for examples that would fail, or silently give wrong results, during a run."""
    inputs, labels = examples.inputs, examples.labels
    if len(inputs) != len(labels):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(labels)} labels; each input needs one label")
    if len(labels) == 0:
        raise DataError(f"{where}: no examples; give at least one")
    bad = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(bad):
        index = int(bad[0])
        raise DataError(
            f"{where}: label {int(labels[index])} at index {index} is outside 0..{num_classes - 1}; "
            "number the classes from 0, or use texts"
        )
    check_finite(inputs, where)


def check_finite(inputs: torch.Tensor, where: str) -> None:
    """Raise DataError for NaN and infinity; the index in it is that of these inputs."""
    if not inputs.is_floating_point() or not inputs.numel():
        return
    # In blocks: `isfinite` makes copies of its argument.
    finite = [block.reshape(len(block), -1).isfinite().all(dim=1) for block in torch.split(inputs, 1024)]
    broken = (~torch.cat(finite)).nonzero()
    if len(broken):
        raise DataError(
            f"{where}: input {int(broken[0])} (counted from 0) contains NaN or infinity ({len(broken)} such inputs); "
            "inputs must be finite: replace or remove them"
        )


def to_float32(values: "NDArray[Any]", where: str) -> "NDArray[np.float32]":
    """A copy as float32; raises DataError for finite numbers beyond its range, which would become infinite."""
    with np.errstate(over="ignore"):
        made = values.astype(np.float32)
    if np.isinf(made).any() and len(large := np.argwhere(np.isinf(made) & np.isfinite(values))):
        raise DataError(
            f"{where}: input {int(large[0][0])} (counted from 0) contains {float(values[tuple(large[0])]):g}, beyond "
            "the range of float32, ±3.4e38; scale the inputs"
        )
    return made


def fixed_split(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(train, test) indices for a data set without an official split: a fifth for testing, the same for every seed."""
    order = torch.from_numpy(stream(0, Purpose.SPLIT).permutation(size))
    num_test = max(1, size // 5)
    return order[num_test:], order[:num_test]


def subset(data: Dataset, size: int, *, pooled: bool) -> Dataset:
    """So many of the training examples; if test examples are pooled with them, so many of both together."""
    num_train = len(data.train)
    available = num_train + (len(data.test) if pooled else 0)
    if size > available:
        raise ConfigError(
            f"data.examples is {size}, {data.name} has {available} for training; lower it or leave it out"
        )
    chosen = np.sort(stream(0, Purpose.SUBSET).permutation(available)[:size])
    train = data.train.take(chosen[chosen < num_train])
    return replace(
        data, train=train, test=data.test.take(chosen[chosen >= num_train] - num_train) if pooled else data.test
    )


def pooled(data: Dataset) -> Dataset:
    """Training and test examples as one set for the clients (App. B); the server has no test set then."""
    parts = (data.train, data.test)
    train = Examples(
        torch.cat([part.inputs if part.indices is None else part.inputs[part.indices] for part in parts]),
        torch.cat([part.all_labels() for part in parts]),
        data.train.prepare,
    )
    # A column that the test examples lack ends with the training examples; partition 'by-column' reports it.
    columns = {
        name: np.concatenate([_in_use(values, data.train), _in_use(data.test_columns.get(name, values[:0]), data.test)])
        for name, values in data.columns.items()
    }
    return replace(
        data, train=train, test=train.take(torch.zeros(0, dtype=torch.int64)), columns=columns, test_columns={}
    )


def _in_use(values: "NDArray[Any]", examples: Examples) -> "NDArray[Any]":
    """The values of these examples, of those of all stored ones."""
    return values if examples.indices is None or not len(values) else values[examples.indices.numpy()]


def channel_statistics(images: "NDArray[np.uint8]") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of (n, channels, h, w) bytes, as fractions of 255.

    Counts pixels by value in integers, so the result is exact up to the final floating-point operations.

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
