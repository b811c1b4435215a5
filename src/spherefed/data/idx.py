"""Fashion-MNIST from its four idx files, plain or gzipped, in the data root or in the folder of Debian's package."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spherefed.data.cache import DecodedInfo, load_decoded, save_array
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Preparation
from spherefed.data.locations import RemoteFile, md5_of_bytes, missing_error
from spherefed.errors import DataError

NAME = "fashion-mnist"
_BASE_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
REMOTES = (
    RemoteFile(url=f"{_BASE_URL}/train-images-idx3-ubyte.gz", md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d", size=26_421_880),
    RemoteFile(url=f"{_BASE_URL}/train-labels-idx1-ubyte.gz", md5="25c81989df183df01b3e8a0aad5dffbe", size=29_515),
    RemoteFile(url=f"{_BASE_URL}/t10k-images-idx3-ubyte.gz", md5="bef4ecab320f06d8554ea6380940ec79", size=4_422_102),
    RemoteFile(url=f"{_BASE_URL}/t10k-labels-idx1-ubyte.gz", md5="bb300cfdad3c16e7a12a480ee83cd310", size=5_148),
)
UNPACKED_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 of the published files after gunzip, so that files compressed by another program count as official too."""
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PREPARE = Preparation(scale=1 / 255, mean=(0.2860,), std=(0.3530,))
MAX_BYTES = 2**30


def find_fashion_mnist(root: Path) -> Path | None:
    """The folder with all four files: `fashion-mnist` in the data root, the root itself, or Debian's folder."""
    for folder in (root / NAME, root, DEBIAN_FOLDER):
        if all(_existing_file(folder, name) is not None for name in UNPACKED_MD5):
            return folder
    return None


def load_fashion_mnist(root: Path) -> Dataset:
    """28×28 greyscale images with the official split, without augmentation, as is usual for this data set."""
    folder = find_fashion_mnist(root)
    if folder is None:
        raise missing_error(NAME, root, [f"{NAME}/{{{', '.join(file.name for file in REMOTES)}}}"], REMOTES)
    paths = {name: path for name in UNPACKED_MD5 if (path := _existing_file(folder, name)) is not None}
    cached = load_decoded(root, NAME, paths.values(), lambda target: _decode(paths, folder, target))
    return cached.dataset(NAME, PREPARE, None)


def read_idx(content: bytes, dimensions: int, where: str) -> "NDArray[np.uint8]":
    """An array of bytes in the idx format: magic number, big-endian sizes, then the bytes.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1, "labels")
    array([7, 9], dtype=uint8)
    """
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise DataError(f"{where}: {len(content)} bytes are too few for an idx header of {header}")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:header])
    if magic != 0x0800 + dimensions:
        raise DataError(
            f"{where}: magic number {magic:#010x}, expected {0x0800 + dimensions:#010x} ({dimensions}-d array of bytes)"
        )
    if math.prod(shape) != len(content) - header:
        raise DataError(f"{where}: the header says {shape}, but {len(content) - header} bytes follow it")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _decode(paths: dict[str, Path], folder: Path, target: Path) -> DecodedInfo:
    contents = {name: _read(path) for name, path in paths.items()}
    counts = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        image_name, label_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        images = read_idx(contents[image_name], 3, str(paths[image_name]))
        labels = read_idx(contents[label_name], 1, str(paths[label_name]))
        if len(images) != len(labels):
            raise DataError(
                f"{paths[image_name]} contains {len(images)} images, {paths[label_name]} contains {len(labels)} labels"
            )
        if images.shape[1:] != (28, 28):
            raise DataError(f"{paths[image_name]}: images are {images.shape[1:]}, expected (28, 28)")
        if len(labels) == 0:
            raise DataError(f"{paths[label_name]}: no examples")
        if labels.max() >= len(CLASSES):
            index = int(np.argmax(labels >= len(CLASSES)))
            raise DataError(f"{paths[label_name]}: label {labels[index]} at index {index} is outside 0..9")
        save_array(target, f"{split}_images", images[:, None])
        save_array(target, f"{split}_labels", labels.astype(np.int64))
        counts[split] = len(labels)
    official = all(md5_of_bytes(contents[name]) == md5 for name, md5 in UNPACKED_MD5.items())
    return DecodedInfo(
        classes=CLASSES,
        provenance={
            "source": str(folder),
            "official": "yes" if official else "no",
            "verified": "MD5 of the four unpacked files" if official else "structure only: not the published files",
            "train": str(counts["train"]),
            "test": str(counts["test"]),
        },
    )


def _existing_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            # In pieces: a single read would allocate MAX_BYTES for any file.
            content = b""
            while len(content) <= MAX_BYTES and (piece := file.read(1 << 24)):
                content += piece
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}; download it again") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{path} unpacks into more than {MAX_BYTES} bytes; such files are not unpacked")
    return content
