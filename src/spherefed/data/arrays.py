"""Data sets that fit in memory as floats: scikit-learn's digits and `.npz` files of the user."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherefed.data.archives import check_zip
from spherefed.data.dataset import Dataset, check_examples, fixed_split, to_float32
from spherefed.data.examples import Examples
from spherefed.data.labels import MAX_CLASSES, check_classes, class_names, label_numbers
from spherefed.data.locations import sha256_of
from spherefed.errors import DataError

LABELS = ("labels", "test_labels")
ARRAYS = ("images", "test_images", *LABELS)
CHANNELS = (1, 3, 4)
"""Of an image: grey, colour, colour with transparency."""


def digits() -> Dataset:
    """scikit-learn's digits: 1,797 real 8×8 images of handwritten digits, a fifth of them for testing."""
    table = _digits_table()
    inputs = torch.from_numpy((table[:, :-1] / 16.0).astype(np.float32)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    # The data set has no official split, so a fixed one is used, the same for every seed.
    train, test = fixed_split(len(labels))
    return Dataset(
        name="digits",
        train=Examples(inputs[train], labels[train]),
        test=Examples(inputs[test], labels[test]),
        classes=tuple(str(digit) for digit in range(10)),
        provenance={"source": "sklearn.datasets.load_digits", "split": "fixed, 4 to 1"},
    )


def _digits_table() -> "np.ndarray":
    """64 pixels and a label in each row, read from scikit-learn's file: importing scikit-learn takes a second."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # this version of scikit-learn has no such file

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


def arrays(path: Path, *, min_classes: int = 2) -> Dataset:
    """A user's `.npz` file with arrays `images` and `labels`, and optionally `test_images` and `test_labels`.

    Images are (n, height, width) or (n, channels, height, width), as integers 0..255 or as floats; numbers (n, d) are
    features and stay as they are. Labels are class numbers or texts. Without test arrays a fixed random fifth of the
    examples is held out for testing. Other arrays with one value per example are columns for partition 'by-column';
    the array `test_NAME` is the column NAME of the test examples.
    """
    if not path.is_file():
        raise DataError(f"no file {path}; arrays: needs an .npz file with 'images' and 'labels'")
    contents = _read(path)
    for name in ("images", "labels"):
        if name not in contents:
            raise DataError(
                f"{path} has no array {name!r}; it has {', '.join(sorted(contents)) or 'none'}; write it with "
                "np.savez(FILE, images=…, labels=…)"
            )
    if ("test_images" in contents) != ("test_labels" in contents):
        raise DataError(f"{path} has only one of 'test_images' and 'test_labels'; give both or neither")
    # Checked before the split, so that an index in an error message is an index of the file.
    texts = [array for name, array in contents.items() if name in LABELS and array.dtype.kind == "U"]
    if texts and len(texts) < sum(name in contents for name in LABELS):
        raise DataError(f"{path}: 'labels' and 'test_labels' must both be texts or both be whole numbers")
    names = class_names(texts)[0] if texts else ()
    images, labels = _as_examples(contents, "images", "labels", path, names)
    columns = {name: a for name, a in contents.items() if name not in ARRAYS and a.shape == (len(labels),)}
    if "test_images" in contents:
        test_images, test_labels = _as_examples(contents, "test_images", "test_labels", path, names)
        found = {name: contents[f"test_{name}"] for name in columns if f"test_{name}" in contents}
        test_columns = {
            name: values
            for name, values in found.items()
            if values.shape == test_labels.shape and values.dtype.kind == columns[name].dtype.kind
        }
    else:
        if len(labels) < 2:
            raise DataError(f"{path}: one example is too few for a training and a test part")
        train, test = fixed_split(len(labels))
        test_images, test_labels = images[test], labels[test]
        images, labels = images[train], labels[train]
        test_columns = {name: values[test.numpy()] for name, values in columns.items()}
        columns = {name: values[train.numpy()] for name, values in columns.items()}
    classes = names or tuple(str(c) for c in range(int(max(labels.max(), test_labels.max())) + 1))
    check_classes(classes, str(path), min_classes)
    return Dataset(
        name=f"arrays:{path}",
        train=Examples(images, labels),
        test=Examples(test_images, test_labels),
        classes=classes,
        unnamed_classes=not names,
        columns=columns,
        test_columns=test_columns,
        provenance={"source": str(path), "sha256": sha256_of(path)},
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
        raise DataError(
            f"{path} cannot be read as .npz without pickles: {error}; write it with np.savez(FILE, images=…, labels=…)"
        ) from error


def _as_examples(
    contents: "dict[str, np.ndarray]", images: str, labels: str, path: Path, names: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    """Inputs and class numbers; `names` are the classes if labels are texts."""
    x, y = contents[images], contents[labels]
    _check_arrays(x, y, images, labels, path)
    is_image = x.ndim > 2
    where = f"{path}, {images!r} with {labels!r}"
    pixels = torch.from_numpy(to_float32(x, where) / (255.0 if is_image and x.dtype.kind in "ui" else 1.0))
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    numbers = label_numbers(y, names, f"{path}, {labels!r}") if names else torch.from_numpy(y.astype(np.int64))
    check_examples(Examples(pixels, numbers), num_classes=MAX_CLASSES, where=where)
    return pixels, numbers


def _check_arrays(x: "np.ndarray", y: "np.ndarray", images: str, labels: str, path: Path) -> None:
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{path}: {images!r} has shape {x.shape}; allowed are (n, h, w), (n, channels, h, w) and (n, d)"
        )
    if x.dtype.kind not in "uif" or y.dtype.kind not in "uiU" or y.ndim != 1:
        raise DataError(
            f"{path}: {images!r} is {x.dtype}, {labels!r} is {y.dtype} of shape {y.shape}; "
            "allowed are numeric images and one-dimensional labels, whole numbers or texts"
        )
    if 0 in x.shape[1:]:
        raise DataError(f"{path}: {images!r} has shape {x.shape}; images without pixels are not allowed")
    if x.ndim == 4 and x.dtype.kind in "ui" and _channels_last(x.shape):
        raise DataError(
            f"{path}: {images!r} has shape {x.shape}, which looks like channels last; allowed are (n, h, w) and "
            f"(n, channels, h, w): write {images}.transpose(0, 3, 1, 2), or floats if the {x.shape[1]} are channels"
        )
    if x.ndim > 2 and x.dtype.kind in "ui" and x.size and not (x.min() >= 0 and x.max() <= 255):
        index = int(np.argmax(((x < 0) | (x > 255)).reshape(len(x), -1).any(axis=1)))
        raise DataError(
            f"{path}: {images!r} at index {index} contains integers outside 0..255; scale them, or use floats"
        )


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether (n, h, w, channels) is more likely than (n, channels, h, w); one column of pixels may be a signal."""
    _, second, third, last = shape
    return second not in CHANNELS and last in CHANNELS and (last > 1 or second == third)
