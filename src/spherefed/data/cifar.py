"""CIFAR-10 and CIFAR-100 from their official archive or its unpacked folder, checked by MD5."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spherefed.data.archives import read_tar
from spherefed.data.augment import CropFlip
from spherefed.data.cache import DecodedInfo, load_decoded, save_array
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Preparation
from spherefed.data.locations import RemoteFile, first_existing, md5_of_bytes, missing_error
from spherefed.data.pickles import read_cifar_pickle
from spherefed.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class CifarFiles:
    """The published files of one of the two data sets."""

    name: str
    remote: RemoteFile
    folder: str
    """Name of the folder inside the archive, and of the unpacked folder."""
    train: dict[str, str]
    """Member → published MD5, in the order of concatenation."""
    test: dict[str, str]
    meta: dict[str, str]
    labels_key: str
    names_key: str
    num_classes: int
    prepare: Preparation

    def accepted(self) -> list[str]:
        """Accepted names in the data root, the preferred one first."""
        return [self.remote.name, f"{self.folder}.tar.xz", f"{self.folder}.tar", self.folder]


CIFAR100 = CifarFiles(
    name="cifar100",
    remote=RemoteFile(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        size=169_001_437,
    ),
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    labels_key="fine_labels",
    names_key="fine_label_names",
    num_classes=100,
    prepare=Preparation(scale=1 / 255, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
)

CIFAR10 = CifarFiles(
    name="cifar10",
    remote=RemoteFile(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        size=170_498_071,
    ),
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
    labels_key="labels",
    names_key="label_names",
    num_classes=10,
    prepare=Preparation(scale=1 / 255, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
)


def find_cifar(files: CifarFiles, root: Path) -> Path | None:
    """The archive or folder in the data root that `load_cifar` reads, or None."""
    return first_existing(root / name for name in files.accepted())


def load_cifar(files: CifarFiles, root: Path) -> Dataset:
    """32×32 RGB images with the official split. Raises DataError if a member does not have its published MD5."""
    source = find_cifar(files, root)
    if source is None:
        raise missing_error(files.name, root, files.accepted(), [files.remote])
    parts = [*files.train, *files.test, *files.meta]
    inputs = [source / part for part in parts if (source / part).is_file()] if source.is_dir() else [source]
    cached = load_decoded(root, files.name, inputs, lambda folder: _decode(files, source, folder))
    return cached.dataset(files.name, files.prepare, CropFlip())


def _decode(files: CifarFiles, source: Path, folder: Path) -> DecodedInfo:
    expected = files.train | files.test | files.meta
    contents = _contents(files, source, list(expected))
    for part, md5 in expected.items():
        actual = md5_of_bytes(contents[part])
        if actual != md5:
            raise DataError(
                f"{_where(source, part)} has MD5 {actual}, published is {md5}; it is damaged or not the official file: "
                f"run 'spherefed data get {files.name}'"
            )
    classes = _class_names(files, contents, source)
    counts = {}
    for split, members in (("train", files.train), ("test", files.test)):
        batches = [_read_batch(files, contents[part], _where(source, part)) for part in members]
        save_array(folder, f"{split}_images", np.concatenate([images for images, _ in batches]))
        save_array(folder, f"{split}_labels", np.concatenate([labels for _, labels in batches]))
        counts[split] = sum(len(labels) for _, labels in batches)
    return DecodedInfo(
        classes=classes,
        provenance={
            "source": source.name,
            "official": "yes",
            "verified": "MD5 of " + ", ".join(f"{part} {md5}" for part, md5 in expected.items()),
            "train": str(counts["train"]),
            "test": str(counts["test"]),
        },
    )


def _contents(files: CifarFiles, source: Path, parts: Sequence[str]) -> dict[str, bytes]:
    if not source.is_dir():
        members = read_tar(source, [f"{files.folder}/{part}" for part in parts])
        return {part: members[f"{files.folder}/{part}"] for part in parts}
    for part in parts:
        if not (source / part).is_file():
            raise DataError(f"{source / part} is missing; the folder needs {', '.join(parts)}")
    return {part: (source / part).read_bytes() for part in parts}


def _class_names(files: CifarFiles, contents: dict[str, bytes], source: Path) -> tuple[str, ...]:
    (part,) = files.meta
    names = read_cifar_pickle(contents[part], _where(source, part)).get(files.names_key)
    if not isinstance(names, list) or len(names) != files.num_classes or not all(isinstance(n, bytes) for n in names):
        raise DataError(f"{_where(source, part)} has no list {files.names_key!r} of {files.num_classes} names")
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def _read_batch(files: CifarFiles, content: bytes, where: str) -> tuple["NDArray[np.uint8]", "NDArray[np.int64]"]:
    batch = read_cifar_pickle(content, where)
    images: Any = batch.get("data")
    labels: Any = batch.get(files.labels_key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3 * 32 * 32:
        raise DataError(f"{where}: 'data' must be bytes of shape (n, 3072), got {getattr(images, 'shape', images)}")
    if not isinstance(labels, list) or len(labels) != len(images):
        given = len(labels) if isinstance(labels, list) else None
        raise DataError(f"{where}: {len(images)} images but {given} labels under {files.labels_key!r}")
    for index, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < files.num_classes:
            raise DataError(f"{where}: label {label!r} at index {index} is outside 0..{files.num_classes - 1}")
    return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _where(source: Path, part: str) -> str:
    return str(source / part) if source.is_dir() else f"{source}: {part}"
