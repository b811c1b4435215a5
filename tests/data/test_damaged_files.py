"""Damaged and hostile inputs: each is a DataError that names the file, and nothing is written elsewhere."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spherefed.data.idx
from spherefed.data.cifar import load_cifar
from spherefed.data.sources import load
from spherefed.data.tiny_imagenet import load_tiny_imagenet
from spherefed.errors import DataError
from support.data_files import (
    array_opcodes,
    cifar100_files,
    cifar100_members,
    cifar_batch,
    fashion_members,
    idx,
    image_bytes,
    image_folder,
    pickled,
    py2,
    tar_of,
    tiny_members,
    write_fashion,
    write_tree,
    zip_of,
)

Case = Callable[[Path], tuple[Callable[[], object], list[str]]]
"""Data root → what to run, and the words its error must hold."""
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# CIFAR: archives

ARCHIVE = "cifar-100-python.tar.gz"


def cifar(root: Path, members: dict[str, bytes] | None = None, extra=(), published=None):
    members = members or cifar100_members()
    tar_of(members, root / ARCHIVE, extra=extra)
    return lambda: load_cifar(published or cifar100_files(members), root)


@case
def truncated_tar_gz(root):
    run = cifar(root)
    path = root / ARCHIVE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return run, [ARCHIVE, "damaged"]


@case
def truncated_tar_xz(root):
    members = cifar100_members()
    path = tar_of(members, root / "cifar-100-python.tar.xz")
    path.write_bytes(path.read_bytes()[:-2000])
    return lambda: load_cifar(cifar100_files(members), root), [path.name, "damaged"]


@case
def flipped_byte_in_tar_gz(root):
    run = cifar(root)
    content = bytearray((root / ARCHIVE).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (root / ARCHIVE).write_bytes(content)
    return run, [ARCHIVE]


@case
def empty_archive_file(root):
    (root / ARCHIVE).write_bytes(b"")
    return lambda: load("cifar100", root), [ARCHIVE, "damaged"]


@case
def archive_that_is_a_web_page(root):
    (root / ARCHIVE).write_bytes(b"<!doctype html><title>404</title>" * 100)
    return lambda: load("cifar100", root), [ARCHIVE, "not a tar archive"]


@case
def archive_without_a_member(root):
    members = cifar100_members()
    files = cifar100_files(members)
    del members["test"]
    tar_of(members, root / ARCHIVE)
    return lambda: load_cifar(files, root), [ARCHIVE, "cifar-100-python/test", "missing"]


@case
def wrong_md5_of_a_member(root):
    members = cifar100_members()
    return cifar(root, cifar100_members(train=cifar_batch(20, seed=5)), published=cifar100_files(members)), [
        ARCHIVE,
        "train",
        "MD5",
    ]


@case
def wrong_md5_against_the_published_ones(root):
    tar_of(cifar100_members(), root / ARCHIVE)
    return lambda: load("cifar100", root), [ARCHIVE, "16019d7e3df5f24257cddd939b257f8d"]


@case
def wrong_md5_in_an_unpacked_folder(root):
    folder = write_tree(cifar100_members(), root / "cifar-100-python")
    return lambda: load("cifar100", root), [str(folder / "train"), "MD5"]


@case
def unpacked_folder_without_a_file(root):
    members = cifar100_members()
    files = cifar100_files(members)
    folder = write_tree(members, root / "cifar-100-python")
    (folder / "meta").unlink()
    return lambda: load_cifar(files, root), [str(folder / "meta"), "missing"]


def _info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@case
def tar_member_above_its_folder(root):
    return cifar(root, extra=[_info("../outside/evil", size=10)]), [ARCHIVE, "../outside/evil"]


@case
def tar_member_with_dots_inside(root):
    return cifar(root, extra=[_info("cifar-100-python/../../evil", size=10)]), [ARCHIVE, "evil", "outside"]


@case
def tar_member_with_an_absolute_path(root):
    return cifar(root, extra=[_info("/tmp/evil", size=10)]), [ARCHIVE, "evil"]


@case
def tar_symbolic_link(root):
    return cifar(root, extra=[_info("cifar-100-python/x", tarfile.SYMTYPE, link="/etc")]), [ARCHIVE, "link"]


@case
def tar_hard_link(root):
    return cifar(root, extra=[_info("cifar-100-python/x", tarfile.LNKTYPE, link="../../x")]), [ARCHIVE, "link"]


@case
def tar_device(root):
    return cifar(root, extra=[_info("cifar-100-python/null", tarfile.CHRTYPE)]), [ARCHIVE, "special file"]


@case
def tar_extension_header_that_would_fill_memory(root):
    return cifar(root, extra=[_info("x", tarfile.XHDTYPE, size=2**32)]), [ARCHIVE, "extension header of 4294967296"]


@case
def tar_sparse_file(root):
    return cifar(root, extra=[_info("x", tarfile.GNUTYPE_SPARSE, size=10)]), [ARCHIVE, "sparse"]


@case
def tar_sparse_map_in_the_content_of_a_member(root):
    info = _info("x", size=512)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}  # its content begins with the map's length
    return cifar(root, extra=[info]), [ARCHIVE, "a sparse file; only plain files"]


@case
def tar_link_in_place_of_a_member(root):
    members = cifar100_members()
    files = cifar100_files(members)
    del members["train"]
    link = _info("cifar-100-python/train", tarfile.SYMTYPE, link="/etc/passwd")
    tar_of(members, root / ARCHIVE, extra=[link])
    return lambda: load_cifar(files, root), [ARCHIVE, "train", "link"]


@case
def tar_bomb(root):
    """A header that promises 100 GB."""
    members = cifar100_members()
    with gzip.open(root / ARCHIVE, "wb") as file:
        file.write(_info("cifar-100-python/train", size=100 * 2**30).tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(10_240))
    return lambda: load_cifar(cifar100_files(members), root), [ARCHIVE, "train", str(100 * 2**30)]


# CIFAR: contents

HOSTILE = {
    "os_system": b"cos\nsystem\n" + py2((b"touch evil",)) + b"R",
    "eval": b"c__builtin__\neval\n" + py2((b"open('evil','w')",)) + b"R",
    "builtins_open": b"cbuiltins\nopen\n" + py2((b"evil", b"w")) + b"R",
    "subprocess": b"csubprocess\nPopen\n" + py2(([b"touch", b"evil"],)) + b"R",
    "numpy_tofile": b"cnumpy\nload\n" + py2((b"evil",)) + b"R",
    "inst_opcode": b"(" + py2(b"touch evil") + b"ios\nsystem\n",
    "obj_opcode": b"(cos\nsystem\n" + py2(b"touch evil") + b"o",
    "newobj_opcode": b"cnumpy\ndtype\n" + py2((b"O8",)) + b"\x81",
    "stack_global": b"\x8c\x02os\x8c\x06system\x93" + py2((b"touch evil",)) + b"R",
    "extension_registry": b"\x82\x01",
    "persistent_id": b"Pevil\n",
    "dotted_name": b"cnumpy\ndtype.__class__\n" + py2((b"x",)) + b"R",
}


def _hostile(opcodes: bytes) -> Case:
    content = b"\x80\x02}(" + py2(b"data") + opcodes + b"u."

    def build(root: Path):
        return cifar(root, cifar100_members(train=content)), [ARCHIVE, "train", "no code of the file was run"]

    return build


for _name, _opcodes in HOSTILE.items():
    CASES[f"hostile_pickle_{_name}"] = _hostile(_opcodes)


class _Touch:
    def __reduce__(self):
        return os.system, ("touch evil",)


@case
def hostile_pickle_made_by_python_itself(root):
    content = pickle.dumps({"data": _Touch()}, protocol=4)
    return cifar(root, cifar100_members(meta=content)), [ARCHIVE, "meta", "no code of the file was run"]


@case
def pickle_memo_that_would_fill_memory(root):
    content = b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b"."
    return cifar(root, cifar100_members(train=content)), [ARCHIVE, "train", "memo"]


@case
def pickle_of_something_else(root):
    return cifar(root, cifar100_members(train=pickled([1, 2]))), [ARCHIVE, "train", "list"]


@case
def truncated_pickle(root):
    content = cifar100_members()["train"][:-100]
    return cifar(root, cifar100_members(train=content)), [ARCHIVE, "train"]


@case
def array_with_fewer_bytes_than_its_shape(root):
    opcodes = array_opcodes((20, 3072), bytes(100))
    content = b"\x80\x02}(" + py2(b"data") + opcodes + b"u."
    return cifar(root, cifar100_members(train=content)), [ARCHIVE, "train", "100 bytes"]


@case
def array_of_python_objects(root):
    content = b"\x80\x02}(" + py2(b"data") + array_opcodes((1,), bytes(8), code=b"O8") + b"u."
    return cifar(root, cifar100_members(train=content)), [ARCHIVE, "train", "not of bytes"]


@case
def cifar_label_out_of_range(root):
    batch = cifar_batch(20)
    batch[b"fine_labels"][7] = 100
    return cifar(root, cifar100_members(train=batch)), [ARCHIVE, "train", "label 100 at index 7"]


@case
def cifar_label_that_is_no_number(root):
    batch = cifar_batch(5)
    batch[b"fine_labels"][3] = b"cat"
    return cifar(root, cifar100_members(test=batch)), [ARCHIVE, "test", "index 3"]


@case
def cifar_labels_fewer_than_images(root):
    batch = cifar_batch(20)
    batch[b"fine_labels"].pop()
    return cifar(root, cifar100_members(train=batch)), [ARCHIVE, "train", "20 images but 19 labels"]


@case
def cifar_images_of_another_shape(root):
    batch = cifar_batch(4) | {b"data": np.zeros((4, 784), np.uint8)}
    return cifar(root, cifar100_members(train=batch)), [ARCHIVE, "train", "(4, 784)"]


@case
def cifar_without_labels(root):
    return cifar(root, cifar100_members(train={b"data": cifar_batch(4)[b"data"]})), [ARCHIVE, "train", "fine_labels"]


@case
def cifar_with_too_few_class_names(root):
    meta = {b"fine_label_names": [b"one"]}
    return cifar(root, cifar100_members(meta=meta)), [ARCHIVE, "meta", "100 names"]


# TinyImageNet

ZIP = "tiny-imagenet-200.zip"


def tiny(root: Path, without: str = "", **changes: bytes):
    """A changed file is named by its path, with __ for /."""
    members = {name: content for name, content in tiny_members().items() if not (without and name.startswith(without))}
    zip_of(members | {name.replace("__", "/"): content for name, content in changes.items()}, root / ZIP)
    return lambda: load_tiny_imagenet(root, num_classes=2)


@case
def truncated_zip(root):
    run = tiny(root)
    (root / ZIP).write_bytes((root / ZIP).read_bytes()[:-500])
    return run, [ZIP, "not a zip archive"]


@case
def zip_with_a_flipped_byte_in_an_image(root):
    run = tiny(root)
    with zipfile.ZipFile(root / ZIP) as archive:
        info = archive.getinfo("tiny-imagenet-200/train/n01/images/n01_1.JPEG")
    content = bytearray((root / ZIP).read_bytes())
    content[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0x55
    (root / ZIP).write_bytes(content)
    return run, [ZIP, "n01_1.JPEG"]


@case
def zip_member_above_its_folder(root):
    return tiny(root, **{"../../evil": b"x"}), [ZIP, "evil", "outside"]


@case
def zip_member_with_an_absolute_path(root):
    run = tiny(root)
    with zipfile.ZipFile(root / ZIP, "a") as archive:
        archive.writestr("/tmp/evil", b"x")
    return run, [ZIP, "evil"]


@case
def zip_member_with_backslashes(root):
    run = tiny(root)
    with zipfile.ZipFile(root / ZIP, "a") as archive:
        archive.writestr("..\\..\\evil", b"x")
    return run, [ZIP, "evil"]


@case
def zip_symbolic_link(root):
    run = tiny(root)
    with zipfile.ZipFile(root / ZIP, "a") as archive:
        info = zipfile.ZipInfo("tiny-imagenet-200/train/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, b"/etc")
    return run, [ZIP, "link"]


@case
def zip_bomb(root):
    run = tiny(root)
    with zipfile.ZipFile(root / ZIP, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for index in range(3):
            archive.writestr(f"tiny-imagenet-200/train/n01/images/bomb{index}.JPEG", bytes(100 * 2**20))
    return run, [ZIP, "times as much"]


@case
def encrypted_zip_member(root):
    run = tiny(root)
    content = bytearray((root / ZIP).read_bytes())
    with zipfile.ZipFile(root / ZIP) as archive:
        start, central = archive.infolist()[0].header_offset, archive.start_dir
    content[start + 6] |= 1
    content[central + 8] |= 1
    (root / ZIP).write_bytes(content)
    return run, [ZIP, "wnids.txt"]


@case
def missing_class_folder(root):
    return tiny(root, without="train/n01"), [ZIP, "train/n01/images"]


@case
def class_folder_that_no_list_names(root):
    return tiny(root, **{"train__n09__images__n09_0.JPEG": image_bytes()}), [ZIP, "n09_0.JPEG", "wnids.txt"]


@case
def another_number_of_classes(root):
    zip_of(tiny_members(), root / ZIP)
    return lambda: load("tiny-imagenet", root), [ZIP, "wnids.txt", "2 classes", "200"]


@case
def class_list_with_a_repeated_name(root):
    return tiny(root, **{"wnids.txt": b"n01\nn01"}), [ZIP, "wnids.txt", "1 different"]


@case
def missing_class_list(root):
    return tiny(root, without="wnids"), [ZIP, "wnids.txt"]


@case
def class_list_that_is_not_text(root):
    return tiny(root, **{"wnids.txt": b"\xff\xfe\xff"}), [ZIP, "wnids.txt", "not text"]


@case
def annotation_of_an_unknown_class(root):
    lines = tiny_members()["val/val_annotations.txt"].replace(b"n01", b"n77")
    return tiny(root, **{"val__val_annotations.txt": lines}), [ZIP, "val_annotations.txt", "line 2", "n77"]


@case
def annotation_without_a_class(root):
    return tiny(root, **{"val__val_annotations.txt": b"val_0.JPEG\n"}), [ZIP, "val_annotations.txt", "line 1"]


@case
def annotation_named_twice(root):
    lines = tiny_members()["val/val_annotations.txt"] * 2
    return tiny(root, **{"val__val_annotations.txt": lines}), [ZIP, "val_annotations.txt", "line 5", "twice"]


@case
def validation_image_without_annotation(root):
    return tiny(root, **{"val__images__val_9.JPEG": image_bytes()}), [ZIP, "val_9.JPEG"]


@case
def annotation_without_an_image(root):
    return tiny(root, without="val/images/val_2"), [ZIP, "val_2.JPEG"]


@case
def missing_annotations(root):
    return tiny(root, without="val/val_annotations"), [ZIP, "val_annotations.txt"]


@case
def text_file_among_the_images(root):
    return tiny(root, **{"train__n01__images__notes.txt": b"x"}), [ZIP, "notes.txt", "not an image"]


@case
def text_that_calls_itself_an_image(root):
    return tiny(root, **{"train__n01__images__n01_1.JPEG": b"hello"}), [ZIP, "n01_1.JPEG", "not a readable image"]


@case
def truncated_image(root):
    half = image_bytes()[:900]
    return tiny(root, **{"val__images__val_1.JPEG": half}), [ZIP, "val_1.JPEG", "not a readable image"]


@case
def image_of_another_size(root):
    return tiny(root, **{"train__n02__images__n02_2.JPEG": image_bytes(size=(32, 64))}), [ZIP, "n02_2.JPEG", "32×64"]


@case
def unpacked_tiny_imagenet_without_a_class(root):
    members = {name: content for name, content in tiny_members().items() if not name.startswith("train/n02")}
    folder = write_tree(members, root / "tiny-imagenet-200")
    return lambda: load_tiny_imagenet(root, num_classes=2), [str(folder), "train/n02/images"]


# Fashion-MNIST


def fashion(root: Path, packed: bool = True, **changes: bytes):
    write_fashion(fashion_members(**changes), root, packed)
    return lambda: load("fashion-mnist", root)


@case
def idx_with_a_wrong_magic_number(root):
    content = b"\0\0\x0d\x03" + fashion_members()["train-images-idx3-ubyte"][4:]
    return fashion(root, train_images=content), ["train-images-idx3-ubyte", "magic number 0x00000d03"]


@case
def idx_labels_in_place_of_images(root):
    return fashion(root, train_images=idx(np.zeros(64))), ["train-images-idx3-ubyte", "magic"]


@case
def idx_with_fewer_bytes_than_promised(root):
    content = fashion_members()["t10k-images-idx3-ubyte"][:-1]
    return fashion(root, test_images=content), ["t10k-images-idx3-ubyte", "4703 bytes follow"]


@case
def idx_with_more_bytes_than_promised(root):
    content = fashion_members()["train-labels-idx1-ubyte"] + b"x"
    return fashion(root, packed=False, train_labels=content), ["train-labels-idx1-ubyte", "13 bytes follow"]


@case
def idx_shorter_than_its_header(root):
    return fashion(root, train_labels=b"\0\0"), ["train-labels-idx1-ubyte", "too few"]


@case
def idx_that_promises_terabytes(root):
    content = struct.pack(">4I", 0x0803, 2**32 - 1, 28, 28)
    return fashion(root, train_images=content), ["train-images-idx3-ubyte", "0 bytes follow"]


@case
def idx_label_out_of_range(root):
    return fashion(root, test_labels=idx(np.array([0, 1, 2, 10, 4, 5]))), ["t10k-labels", "label 10 at index 3"]


@case
def idx_images_and_labels_of_different_number(root):
    return fashion(root, train_labels=idx(np.zeros(11))), ["train-images", "12 images", "11 labels"]


@case
def idx_images_of_another_size(root):
    return fashion(root, train_images=idx(np.zeros((12, 32, 32)))), ["train-images", "(32, 32)"]


@case
def idx_without_examples(root):
    run = fashion(root, train_images=idx(np.zeros((0, 28, 28))), train_labels=idx(np.zeros(0)))
    return run, ["train-labels", "no examples"]


@case
def truncated_gzip(root):
    run = fashion(root)
    path = root / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:200])
    return run, [str(path), "damaged"]


@case
def gzip_that_is_not_gzip(root):
    run = fashion(root)
    path = root / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(b"hello")
    return run, [str(path), "damaged"]


@case
def gzip_bomb(root):
    run = fashion(root, train_labels=bytes(3 * 2**20))
    return run, ["train-labels-idx1-ubyte.gz", "not unpacked"]


# The user's own folder


def own(root: Path):
    path = root / "mine"
    return path, lambda: load(f"folder:{path}", root)


@case
def folder_that_is_not_there(root):
    path, run = own(root)
    return run, [str(path), "no folder"]


@case
def empty_folder(root):
    path, run = own(root)
    path.mkdir()
    return run, [str(path), "0 class folders"]


@case
def folder_with_one_class(root):
    path, run = own(root)
    image_folder(path, classes=("cat",))
    return run, [str(path), "at least 2"]


@case
def empty_class_folder(root):
    path, run = own(root)
    (image_folder(path) / "emu").mkdir()
    return run, [str(path / "emu"), "empty"]


@case
def other_file_among_own_images(root):
    path, run = own(root)
    write_tree({"cat/notes.txt": b"x"}, image_folder(path))
    return run, [str(path / "cat" / "notes.txt"), "not an image"]


@case
def broken_own_image(root):
    path, run = own(root)
    write_tree({"dog/3.png": b"\x89PNG broken"}, image_folder(path))
    return run, [str(path / "dog" / "3.png"), "not a readable image"]


@case
def own_images_of_different_sizes(root):
    path, run = own(root)
    write_tree({"dog/3.png": image_bytes(size=(9, 9), kind="PNG")}, image_folder(path))
    return run, [str(path / "dog"), "pixels, the others are"]


@case
def own_image_of_a_billion_pixels(root):
    """A PNG header that promises 40,000 × 40,000."""
    path, run = own(root)
    content = bytearray(image_bytes(kind="PNG"))
    content[16:24] = struct.pack(">2I", 40_000, 40_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    write_tree({f"{name}/{i}.png": bytes(content) for name in ("cat", "dog") for i in range(2)}, path)
    return run, [str(path)]


@case
def class_missing_in_the_test_part(root):
    path, run = own(root)
    image_folder(path / "train", classes=("cat", "dog", "emu"))
    image_folder(path / "test")
    return run, [str(path / "test" / "emu"), "missing"]


@case
def class_missing_in_the_training_part(root):
    path, run = own(root)
    image_folder(path / "train")
    image_folder(path / "val", classes=("cat", "dog", "emu"))
    return run, [str(path / "train" / "emu"), "missing"]


@case
def training_part_without_a_test_part(root):
    path, run = own(root)
    image_folder(path / "train")
    return run, [str(path), "neither test/ nor val/"]


# The user's own arrays


def own_arrays(root: Path, **found):
    defaults = {"images": np.zeros((10, 3, 4, 4), np.float32), "labels": np.arange(10) % 3}
    np.savez(root / "own.npz", **{name: array for name, array in (defaults | found).items() if array is not None})
    return lambda: load(f"arrays:{root / 'own.npz'}")


@case
def nan_pixels(root):
    images = np.zeros((10, 3, 4, 4), np.float32)
    images[6, 1, 2, 3] = np.nan
    return own_arrays(root, images=images), ["own.npz", "input 6", "NaN"]


@case
def infinite_pixels_in_the_test_part(root):
    images = np.full((2, 3, 4, 4), np.inf)
    return own_arrays(root, test_images=images, test_labels=np.zeros(2, int)), ["own.npz", "test_images", "input 0"]


@case
def negative_label(root):
    labels = np.arange(10)
    labels[4] = -1
    return own_arrays(root, labels=labels), ["own.npz", "label -1 at index 4"]


@case
def label_in_the_billions(root):
    labels = np.arange(10)
    labels[4] = 10**9
    return own_arrays(root, labels=labels), ["own.npz", "label 1000000000 at index 4"]


@case
def fractional_labels(root):
    return own_arrays(root, labels=np.arange(10) / 2), ["own.npz", "float64"]


@case
def more_images_than_labels(root):
    return own_arrays(root, labels=np.arange(9)), ["own.npz", "10 inputs but 9 labels"]


@case
def images_without_pixels(root):
    return own_arrays(root, images=np.zeros((10, 3, 0, 4))), ["own.npz", "without pixels"]


@case
def no_examples(root):
    return own_arrays(root, images=np.zeros((0, 3, 4, 4)), labels=np.zeros(0, int)), ["own.npz", "no examples"]


@case
def integers_above_255(root):
    images = np.zeros((10, 3, 4, 4), np.int32)
    images[2] = 256
    return own_arrays(root, images=images), ["own.npz", "index 2", "0..255"]


@case
def own_test_images_of_another_shape(root):
    other = np.zeros((2, 3, 5, 5), np.float32)
    return own_arrays(root, test_images=other, test_labels=np.zeros(2, int)), ["own.npz", "(3, 4, 4)", "(3, 5, 5)"]


@case
def own_test_images_without_labels(root):
    return own_arrays(root, test_images=np.zeros((2, 3, 4, 4))), ["own.npz", "test_labels"]


@case
def arrays_without_labels(root):
    return own_arrays(root, labels=None), ["own.npz", "'labels'"]


@case
def pickled_objects_in_npz(root):
    return own_arrays(root, images=np.array([_Touch()] * 10, dtype=object)), ["own.npz", "pickles"]


@case
def truncated_npz(root):
    run = own_arrays(root)
    (root / "own.npz").write_bytes((root / "own.npz").read_bytes()[:-60])
    return run, ["own.npz"]


@case
def npz_that_is_a_pickle(root):
    (root / "own.npz").write_bytes(pickle.dumps(_Touch()))
    return lambda: load(f"arrays:{root / 'own.npz'}"), ["own.npz"]


@case
def npz_that_is_not_there(root):
    return lambda: load(f"arrays:{root / 'own.npz'}"), ["own.npz", "no file"]


@case
def npz_whose_header_promises_terabytes(root):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**13, 1, 1)})
    with zipfile.ZipFile(root / "own.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue())
        archive.writestr("labels.npy", header.getvalue())
    return lambda: load(f"arrays:{root / 'own.npz'}"), ["own.npz"]


@case
def npz_bomb(root):
    np.savez_compressed(root / "own.npz", images=np.zeros((100, 1, 1024, 1024), np.uint8), labels=np.zeros(100, int))
    return lambda: load(f"arrays:{root / 'own.npz'}"), ["own.npz", "times as much"]


@pytest.mark.parametrize("name", CASES)
def test_damaged_input_is_refused_by_name_and_nothing_is_written_elsewhere(name, tmp_path, monkeypatch):
    root, cwd = tmp_path / "root", tmp_path / "elsewhere" / "deep"
    root.mkdir()
    cwd.mkdir(parents=True)
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(spherefed.data.idx, "DEBIAN_FOLDER", tmp_path / "no-debian")
    monkeypatch.setattr(spherefed.data.idx, "MAX_BYTES", 2**20)
    run, words = CASES[name](root)
    before = _everything(tmp_path)
    with pytest.raises(DataError) as caught:
        run()
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    left = _everything(tmp_path) - before
    assert left <= {root / "cache"}, "neither outside the data root nor a half-made cache inside it"
    assert not Path("/tmp/evil").exists()


def _everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_the_undamaged_counterparts_load(tmp_path):
    assert len(cifar(tmp_path)().train) == 20
    assert len(tiny(tmp_path)().train) == 6
    assert len(fashion(tmp_path)().train) == 12
    image_folder(tmp_path / "mine")
    assert len(own(tmp_path)[1]().train) == 8
    assert len(own_arrays(tmp_path)().train) == 8
