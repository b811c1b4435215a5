"""Image folders of the user: one sub-folder per class, optionally inside `train/` and `test/` (or `val/`)."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spherefed.data.cache import DecodedInfo, load_decoded, new_array, save_array
from spherefed.data.dataset import Dataset, channel_statistics, fixed_split
from spherefed.data.examples import Preparation
from spherefed.data.images import SUFFIXES, decode_image
from spherefed.data.locations import user_path
from spherefed.data.resize import area_mean
from spherefed.errors import ConfigError, DataError

Labelled = list[tuple[Path, int]]
SIZES = "; set data.resize to make all images equally large"


def load_folder(path: Path, root: Path, *, min_classes: int = 2, resize: int | None = None) -> Dataset:
    """Images in class folders, converted to RGB; classes in sorted order of their names.

    Images need equal sizes, or `resize`, the side of the smaller squares that they become (`area_mean`). Without a
    `test/` or `val/` folder, a fixed random fifth of the images is held out for testing. Pixels are normalized with the
    mean and standard deviation of the training part. There is no augmentation, because not every subject can be
    flipped.
    """
    path = user_path(path)
    if not path.is_dir():
        raise DataError(f"no folder {path}; folder: needs a folder with one sub-folder of images per class")
    classes, train, test = _split(path, min_classes)
    files = [file for file, _ in train + test]
    cached = load_decoded(
        root,
        # "-8bit", because earlier versions stored images of 16 bits as white ones under a name without it.
        "folder-8bit" if resize is None else f"folder-8bit-{resize}px",
        [path, *files],
        lambda target: _decode(path, classes, train, test, target, resize),
    )
    prepare = Preparation(scale=1 / 255, mean=cached.info.mean, std=cached.info.std)
    return cached.dataset(f"folder:{path}", prepare, None)


def _split(path: Path, min_classes: int) -> tuple[tuple[str, ...], Labelled, Labelled]:
    """Class names, training files, test files."""
    train_folder = path / "train"
    test_folder = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if train_folder.is_dir() and test_folder is not None:
        classes = _class_folders(train_folder, min_classes)
        unmatched = set(_class_folders(test_folder, min_classes)) ^ set(classes)
        if unmatched:
            name = min(unmatched)
            incomplete = test_folder if name in classes else train_folder
            raise DataError(f"{incomplete / name} is missing: both parts need a folder for every class")
        return classes, _images(train_folder, classes), _images(test_folder, classes)
    if train_folder.is_dir():
        raise DataError(f"{path} has train/ but neither test/ nor val/; add one of them, or use folder:{train_folder}")
    classes = _class_folders(path, min_classes)
    images = _images(path, classes)
    if len(images) < 2:
        raise DataError(f"{path}: {len(images)} image is too few for a training and a test part")
    train_indices, test_indices = fixed_split(len(images))
    return classes, [images[i] for i in train_indices.tolist()], [images[i] for i in test_indices.tolist()]


def _class_folders(path: Path, min_classes: int) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for name in names:
        if not name.isprintable():  # also names that are not UTF-8
            raise DataError(f"{path} has a class folder whose name is not printable text: {name!r}; rename it")
    if len(names) < min_classes:
        raise DataError(
            f"{path} has {len(names)} class folders; at least {min_classes} needed, one sub-folder of images per class"
        )
    return tuple(names)


def _images(path: Path, classes: tuple[str, ...]) -> Labelled:
    labelled: Labelled = []
    for label, name in enumerate(classes):
        files = sorted(file for file in (path / name).iterdir() if not file.name.startswith("."))
        if not files:
            raise DataError(f"{path / name} is empty; every class needs at least one image")
        for file in files:
            if not file.is_file() or file.suffix.lower() not in SUFFIXES:
                raise DataError(f"{file} is not an image file; allowed are {', '.join(sorted(SUFFIXES))}")
            labelled.append((file, label))
    return labelled


def _decode(
    path: Path, classes: tuple[str, ...], train: Labelled, test: Labelled, target: Path, resize: int | None
) -> DecodedInfo:
    shape: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    digests: dict[str, str] = {}
    for split, labelled in (("train", train), ("test", test)):
        images = None
        for index, (file, _) in enumerate(labelled):
            pixels = decode_image(_read(file), str(file), shape if resize is None else None, SIZES)
            if resize is not None:
                pixels = _smaller(pixels, resize, file)
            shape = (pixels.shape[1], pixels.shape[2])
            if images is None:
                images = new_array(target, f"{split}_images", (len(labelled), 3, *shape))
            images[index] = pixels
        assert images is not None, "neither part is empty"
        digests[f"sha256 of {split} images"] = hashlib.sha256(images.data).hexdigest()
        save_array(target, f"{split}_labels", np.array([label for _, label in labelled], dtype=np.int64))
        if split == "train":
            mean, std = channel_statistics(images)
    return DecodedInfo(
        classes=classes,
        provenance={
            "source": str(path),
            "official": "no",
            "verified": "every image was decoded",
            "train": str(len(train)),
            "test": str(len(test)),
            **({} if resize is None else {"resized": f"area mean, to {resize}×{resize}"}),
            **digests,
        },
        mean=mean,
        # A channel with equal pixels has std 0; dividing by 1 instead gives zeros.
        std=tuple(deviation or 1.0 for deviation in std),
    )


def _smaller(pixels: "NDArray[np.uint8]", size: int, file: Path) -> "NDArray[np.uint8]":
    height, width = pixels.shape[1:]
    if size > min(height, width):
        raise ConfigError(
            f"data.resize makes images smaller, and {file} has {height}×{width} pixels; got {size}, at most "
            f"{min(height, width)} is possible with this image"
        )
    smaller: NDArray[np.uint8] = area_mean(pixels[None], size)[0]
    return smaller


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
