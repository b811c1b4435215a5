"""Small files in the official formats, made by hand: what the loaders are tested on."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from spherefed.data.cifar import CIFAR10, CIFAR100, CifarFiles

# Python 2 pickles, protocol 2, written opcode by opcode: Python 3 would pickle bytes through a function call.


def py2(value) -> bytes:
    """The opcodes of a value as Python 2 wrote it."""
    match value:
        case bytes():
            size = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
            opcodes = size + value
        case None:
            opcodes = b"N"
        case int():
            opcodes = b"J" + struct.pack("<i", value)
        case list():
            opcodes = b"](" + b"".join(map(py2, value)) + b"e"
        case tuple():
            opcodes = b"(" + b"".join(map(py2, value)) + b"t"
        case dict():
            opcodes = b"}(" + b"".join(py2(key) + py2(item) for key, item in value.items()) + b"u"
        case np.ndarray():
            opcodes = array_opcodes(value.shape, value.tobytes())
        case _:
            raise TypeError(type(value))
    return opcodes


def array_opcodes(shape, content: bytes, code: bytes = b"u1", order: int = 0) -> bytes:
    dtype = b"cnumpy\ndtype\n" + py2((code, 0, 1)) + b"R" + py2((3, b"|", None, None, None, -1, -1, 0)) + b"b"
    state = b"(" + py2(1) + py2(tuple(shape)) + dtype + py2(order) + py2(content) + b"t"
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + py2((0,)) + py2(b"b") + b"tR"
    return start + state + b"b"


def pickled(value) -> bytes:
    return b"\x80\x02" + py2(value) + b"."


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def cifar_batch(num: int = 6, num_classes: int = 100, seed: int = 0, key: bytes = b"fine_labels") -> dict:
    rng = np.random.default_rng(seed)
    labels = [int(label) for label in rng.integers(num_classes, size=num)]
    return {b"data": rng.integers(256, size=(num, 3072), dtype=np.uint8), key: labels}


def cifar100_members(**changes) -> dict[str, bytes]:
    """The three files of a small CIFAR-100; a change replaces a file's dictionary, or its bytes."""
    values = {
        "train": cifar_batch(20),
        "test": cifar_batch(5, seed=1),
        "meta": {b"fine_label_names": [b"class %d" % i for i in range(100)]},
    } | changes
    return {name: value if isinstance(value, bytes) else pickled(value) for name, value in values.items()}


def cifar100_files(members: dict[str, bytes]) -> CifarFiles:
    """The data set whose published files are these."""
    return replace(CIFAR100, **{name: {name: md5(members[name])} for name in ("train", "test", "meta")})


def cifar10_members() -> tuple[dict[str, bytes], CifarFiles]:
    batches = {name: cifar_batch(4, 10, seed, b"labels") for seed, name in enumerate(CIFAR10.train)}
    members = {name: pickled(batch) for name, batch in batches.items()}
    members["test_batch"] = pickled(cifar_batch(5, 10, 9, b"labels"))
    # Protocol 0, as the published file.
    names = b"".join(b"S'class %d'\na" % i for i in range(10))
    members["batches.meta"] = b"(dp1\nS'num_cases_per_batch'\np2\nI10000\nsS'label_names'\n(lp3\n" + names + b"s."
    hashed = {part: {name: md5(members[name]) for name in getattr(CIFAR10, part)} for part in ("train", "test", "meta")}
    return members, replace(CIFAR10, **hashed)


def tar_of(members: dict[str, bytes], path: Path, folder: str = "cifar-100-python", extra=()) -> Path:
    mode = {".gz": "w:gz", ".xz": "w:xz", ".tar": "w"}[path.suffix]
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info, io.BytesIO(bytes(info.size)) if info.isreg() else None)
    return path


def image_bytes(seed: int = 0, size: tuple[int, int] = (64, 64), mode: str = "RGB", kind: str = "JPEG") -> bytes:
    rng = np.random.default_rng(seed)
    shape = size if mode == "L" else (*size, len(mode))
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(256, size=shape, dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def tiny_members(per_class: int = 3, num_val: int = 4) -> dict[str, bytes]:
    """A TinyImageNet of two classes; one training image is greyscale."""
    ids = ["n02", "n01"]
    members = {"wnids.txt": "\n".join(ids).encode(), "words.txt": b"n01\tgoldfish, carp\nn02\tbullfrog\nn03\tother\n"}
    for number, wnid in enumerate(ids):
        members[f"train/{wnid}/{wnid}_boxes.txt"] = b"\n"
        for index in range(per_class):
            mode = "L" if (number, index) == (0, 0) else "RGB"
            members[f"train/{wnid}/images/{wnid}_{index}.JPEG"] = image_bytes(10 * number + index, mode=mode)
    lines = []
    for index in range(num_val):
        members[f"val/images/val_{index}.JPEG"] = image_bytes(100 + index)
        lines.append(f"val_{index}.JPEG\t{ids[index % 2]}\t0\t0\t62\t62\n")
    members["val/val_annotations.txt"] = "".join(lines).encode()
    return members


def zip_of(members: dict[str, bytes], path: Path, prefix: str = "tiny-imagenet-200/") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(prefix + name, content)
    return path


def write_tree(members: dict[str, bytes], folder: Path) -> Path:
    for name, content in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def fashion_members(**changes: bytes) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    members = {
        "train-images-idx3-ubyte": idx(rng.integers(256, size=(12, 28, 28))),
        "train-labels-idx1-ubyte": idx(np.arange(12) % 10),
        "t10k-images-idx3-ubyte": idx(rng.integers(256, size=(6, 28, 28))),
        "t10k-labels-idx1-ubyte": idx(np.arange(6)),
    }
    short = {"train_images": 0, "train_labels": 1, "test_images": 2, "test_labels": 3}
    names = list(members)
    return members | {names[short[key]]: content for key, content in changes.items()}


def write_fashion(members: dict[str, bytes], root: Path, packed: bool = True) -> Path:
    folder = root / "fashion-mnist"
    suffix, pack = (".gz", gzip.compress) if packed else ("", bytes)
    return write_tree({f"{name}{suffix}": pack(content) for name, content in members.items()}, folder)


def image_folder(path: Path, classes=("cat", "dog"), per_class: int = 5, size=(8, 6)) -> Path:
    members = {
        f"{name}/{index}.png": image_bytes(100 * number + index, size=size, kind="PNG")
        for number, name in enumerate(classes)
        for index in range(per_class)
    }
    return write_tree(members, path)
