"""The user's own images: one folder per class, `train/` and `test/` (or `val/`) above them if there is a split."""

from pathlib import Path

import numpy as np

from spherefed.data.cache import Facts, decoded, new_array, save_array
from spherefed.data.dataset import Dataset, channel_statistics, fixed_split
from spherefed.data.examples import Preparation
from spherefed.data.images import SUFFIXES, decode_image
from spherefed.errors import DataError

Labelled = list[tuple[Path, int]]


def load_folder(path: Path, root: Path, *, fewest_classes: int = 2) -> Dataset:
    """Class folders of equally large images as RGB, classes in the order of their sorted names.

    Without a `test/` or `val/` folder a fixed fifth of all images is held out. Pixels are normalised with the mean and
    standard deviation of the training part; there is no augmentation, since not every subject may be mirrored.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise DataError(f"no folder {path}; folder: needs a folder with one sub-folder of images per class")
    classes, train, test = _split(path, fewest_classes)
    files = [file for file, _ in train + test]
    found = decoded(root, "folder", [path, *files], lambda target: _decode(path, classes, train, test, target))
    prepare = Preparation(scale=1 / 255, mean=found.facts.mean, std=found.facts.std)
    return found.dataset(f"folder:{path}", prepare, None)


def _split(path: Path, fewest: int) -> tuple[tuple[str, ...], Labelled, Labelled]:
    """Class names, training files, test files."""
    train_folder = path / "train"
    test_folder = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if train_folder.is_dir() and test_folder is not None:
        classes = _class_folders(train_folder, fewest)
        others = set(_class_folders(test_folder, fewest)) ^ set(classes)
        if others:
            name = min(others)
            lacking = test_folder if name in classes else train_folder
            raise DataError(f"{lacking / name} is missing: both parts need a folder for every class")
        return classes, _images(train_folder, classes), _images(test_folder, classes)
    if train_folder.is_dir():
        raise DataError(
            f"{path} has train/ but neither test/ nor val/; add one, or name the folder {train_folder} itself"
        )
    classes = _class_folders(path, fewest)
    everything = _images(path, classes)
    if len(everything) < 2:
        raise DataError(f"{path}: {len(everything)} image is too few to hold a fifth out for testing")
    kept, held = fixed_split(len(everything))
    return classes, [everything[i] for i in kept.tolist()], [everything[i] for i in held.tolist()]


def _class_folders(path: Path, fewest: int) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < fewest:
        raise DataError(
            f"{path} has {len(names)} class folders; at least {fewest} are needed, one sub-folder of images each"
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


def _decode(path: Path, classes: tuple[str, ...], train: Labelled, test: Labelled, target: Path) -> Facts:
    shape: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    for split, labelled in (("train", train), ("test", test)):
        images = None
        for index, (file, _) in enumerate(labelled):
            pixels = decode_image(_read(file), str(file), shape)
            shape = (pixels.shape[1], pixels.shape[2])
            if images is None:
                images = new_array(target, f"{split}_images", (len(labelled), 3, *shape))
            images[index] = pixels
        assert images is not None, "neither part is empty"
        save_array(target, f"{split}_labels", np.array([label for _, label in labelled], dtype=np.int64))
        if split == "train":
            mean, std = channel_statistics(images)
    return Facts(
        classes=classes,
        provenance={
            "source": str(path),
            "official": "no",
            "verified": "every image was decoded",
            "train": str(len(train)),
            "test": str(len(test)),
        },
        mean=mean,
        # A channel in which all pixels are equal is left at zero, not divided by it.
        std=tuple(deviation or 1.0 for deviation in std),
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
