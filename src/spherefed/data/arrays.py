"""Data sets that fit in memory as floats: scikit-learn's digits, and the user's own `.npz` file."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherefed.data.archives import check_zip
from spherefed.data.dataset import Dataset, check_examples, fixed_split
from spherefed.data.examples import Examples
from spherefed.errors import DataError

MAX_CLASSES = 65_536


def digits() -> Dataset:
    """scikit-learn's digits: 1,797 real 8×8 images of handwritten digits, a fifth of them for testing."""
    table = _digits_table()
    inputs = torch.from_numpy((table[:, :-1] / 16.0).astype(np.float32)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    # The set has no official split: a fixed one, the same for every experiment seed, stands in for it.
    train, test = fixed_split(len(labels))
    return Dataset(
        name="digits",
        train=Examples(inputs[train], labels[train]),
        test=Examples(inputs[test], labels[test]),
        classes=tuple(str(digit) for digit in range(10)),
        provenance={"source": "sklearn.datasets.load_digits", "split": "fixed, 4 to 1"},
    )


def _digits_table() -> "np.ndarray":
    """64 pixels and a label in each row, from scikit-learn's own file: to import all of it would take a second."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # the file has moved

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


def arrays(path: Path) -> Dataset:
    """The user's own arrays: an `.npz` file with images, labels and, if there is a test part, test_images, test_labels.

    Images are (n, height, width) or (n, channels, height, width), as integers 0..255 or as floats; without a test
    part every fifth example, by a fixed permutation, is held out.
    """
    if not path.is_file():
        raise DataError(f"no file {path}; arrays: needs an .npz file with 'images' and 'labels'")
    found = _read(path)
    for name in ("images", "labels"):
        if name not in found:
            raise DataError(f"{path} has no array {name!r}; it has {sorted(found)}")
    if ("test_images" in found) != ("test_labels" in found):
        raise DataError(f"{path} has only one of 'test_images' and 'test_labels'; give both or neither")
    # Checked before anything is held out, so that an index in a message is one of the file.
    images, labels = _as_examples(found, "images", "labels", path)
    if "test_images" in found:
        test_images, test_labels = _as_examples(found, "test_images", "test_labels", path)
    else:
        if len(labels) < 2:
            raise DataError(f"{path}: one example is too few to hold a fifth out for testing")
        train, test = fixed_split(len(labels))
        test_images, test_labels = images[test], labels[test]
        images, labels = images[train], labels[train]
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    return Dataset(
        name=f"arrays:{path}",
        train=Examples(images, labels),
        test=Examples(test_images, test_labels),
        classes=tuple(str(c) for c in range(num_classes)),
        numbered=True,
        provenance={"source": str(path)},
    )


def _read(path: Path) -> "dict[str, np.ndarray]":
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip(path, archive)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as .npz without pickles: {error}") from error


def _as_examples(found: "dict[str, np.ndarray]", images: str, labels: str, path: Path) -> tuple[Tensor, Tensor]:
    x, y = found[images], found[labels]
    if x.ndim not in (3, 4):
        raise DataError(f"{path}: {images!r} has shape {x.shape}; allowed are (n, h, w) and (n, channels, h, w)")
    if x.dtype.kind not in "uif" or y.dtype.kind not in "ui" or y.ndim != 1:
        raise DataError(
            f"{path}: {images!r} is {x.dtype}, {labels!r} is {y.dtype} of shape {y.shape}; "
            "allowed are numeric images and one-dimensional integer labels"
        )
    if 0 in x.shape[1:]:
        raise DataError(f"{path}: {images!r} has shape {x.shape}; an image without pixels cannot be learnt from")
    if x.dtype.kind in "ui" and x.size and not (x.min() >= 0 and x.max() <= 255):
        index = int(np.argmax(((x < 0) | (x > 255)).reshape(len(x), -1).any(axis=1)))
        raise DataError(
            f"{path}: {images!r} at index {index} holds integers outside 0..255; scale them, or give floats"
        )
    pixels = torch.from_numpy(x.astype(np.float32) / (255.0 if x.dtype.kind in "ui" else 1.0))
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    numbers = torch.from_numpy(y.astype(np.int64))
    check_examples(Examples(pixels, numbers), num_classes=MAX_CLASSES, where=f"{path}, {images!r} with {labels!r}")
    return pixels, numbers
