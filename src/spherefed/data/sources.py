"""Data sets by name, each one function that returns a checked `Dataset`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherefed.data.examples import Augment, Examples
from spherefed.errors import ConfigError, DataError
from spherefed.rng import Purpose, stream
from spherefed.schema import nearest


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A data set as loaded: training and test examples, class names, and where it came from."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    augment: Augment | None = None
    """Applied to training batches only; None for data sets that are trained as they are."""
    provenance: dict[str, str] = field(default_factory=dict)
    """Facts about the files (digests, counts, whether they are the official ones), stored with a run."""

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            check_examples(examples, num_classes=len(self.classes), where=f"data set {self.name!r}, {part} part")

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


def digits() -> Dataset:
    """scikit-learn's digits: 1,797 real 8×8 images of handwritten digits, a fifth of them for testing."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    inputs = torch.from_numpy((raw.images / 16.0).astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    # The set has no official split: a fixed one, the same for every experiment seed, stands in for it.
    order = torch.from_numpy(stream(0, Purpose.SPLIT).permutation(len(labels)))
    num_test = len(labels) // 5
    test, train = order[:num_test], order[num_test:]
    return Dataset(
        name="digits",
        train=Examples(inputs[train], labels[train]),
        test=Examples(inputs[test], labels[test]),
        classes=tuple(str(name) for name in raw.target_names),
        provenance={"source": "sklearn.datasets.load_digits", "split": "fixed, 4 to 1"},
    )


def arrays(path: Path) -> Dataset:
    """The user's own arrays: an `.npz` file with images, labels and, if there is a test part, test_images, test_labels.

    Images are (n, height, width) or (n, channels, height, width), as integers 0..255 or as floats; without a test
    part every fifth example, by a fixed permutation, is held out.
    """
    if not path.is_file():
        raise DataError(f"no file {path}; arrays: needs an .npz file with 'images' and 'labels'")
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:
        raise DataError(f"{path} cannot be read as .npz without pickles: {error}") from error
    for name in ("images", "labels"):
        if name not in found:
            raise DataError(f"{path} has no array {name!r}; it has {sorted(found)}")
    images, labels = _as_examples(found, "images", "labels", path)
    if "test_images" in found and "test_labels" in found:
        test_images, test_labels = _as_examples(found, "test_images", "test_labels", path)
    else:
        order = torch.from_numpy(stream(0, Purpose.SPLIT).permutation(len(labels)))
        held = max(1, len(labels) // 5)
        test_images, test_labels = images[order[:held]], labels[order[:held]]
        images, labels = images[order[held:]], labels[order[held:]]
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    return Dataset(
        name=f"arrays:{path}",
        train=Examples(images, labels),
        test=Examples(test_images, test_labels),
        classes=tuple(str(c) for c in range(num_classes)),
        provenance={"source": str(path)},
    )


SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits}
"""Data sets that need no path."""


def load(name: str) -> Dataset:
    """The data set of this name: one of `SOURCES`, or `arrays:FILE.npz`."""
    if name.startswith("arrays:"):
        return arrays(Path(name.removeprefix("arrays:")))
    if name not in SOURCES:
        raise ConfigError(f"unknown data set {name!r}; {nearest(name, [*SOURCES, 'arrays:FILE.npz'])}")
    return SOURCES[name]()


def _as_examples(found: "dict[str, np.ndarray]", images: str, labels: str, path: Path) -> tuple[Tensor, Tensor]:
    x, y = found[images], found[labels]
    if x.ndim not in (3, 4):
        raise DataError(f"{path}: {images!r} has shape {x.shape}; allowed are (n, h, w) and (n, channels, h, w)")
    if x.dtype.kind not in "uif" or y.dtype.kind not in "ui" or y.ndim != 1:
        raise DataError(
            f"{path}: {images!r} is {x.dtype}, {labels!r} is {y.dtype} of shape {y.shape}; "
            "allowed are numeric images and one-dimensional integer labels"
        )
    pixels = torch.from_numpy(x.astype(np.float32) / (255.0 if x.dtype.kind in "ui" else 1.0))
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    return pixels, torch.from_numpy(y.astype(np.int64))
