"""TinyImageNet from its official zip archive or the unpacked folder: 200 classes of 64×64 images.

The published archive is recognized by its MD5. Another archive (a subset, or the same files repacked) is accepted if
its structure is correct; the provenance of the data set marks it as unofficial and contains its counts. The labelled
validation images are the test part; the unlabelled images in `test/` are not read.
"""

from pathlib import Path, PurePosixPath

import numpy as np

from spherefed.data.archives import FileTree, open_folder, open_zip
from spherefed.data.augment import CropFlip
from spherefed.data.cache import DecodedInfo, load_decoded, new_array, save_array
from spherefed.data.dataset import Dataset
from spherefed.data.examples import Preparation
from spherefed.data.images import SUFFIXES, decode_image
from spherefed.data.locations import RemoteFile, first_existing, md5_of, missing_error
from spherefed.errors import DataError

NAME = "tiny-imagenet"
REMOTE = RemoteFile(
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip", md5="90528d7ca1a48142e341f4ef8d21d0de", size=248_100_043
)
ACCEPTED = ["tiny-imagenet-200.zip", "tiny-imagenet-200"]
NUM_CLASSES = 200
PREPARE = Preparation(scale=1 / 255, mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821))
SHAPE = (64, 64)

Labelled = list[tuple[str, int]]
"""Names of image files with their labels."""


def find_tiny_imagenet(root: Path) -> Path | None:
    """The archive or folder in the data root that `load_tiny_imagenet` reads, or None."""
    return first_existing(root / name for name in ACCEPTED)


def load_tiny_imagenet(root: Path, num_classes: int = NUM_CLASSES) -> Dataset:
    """64×64 RGB images, greyscale images converted to RGB; classes in sorted order of their WordNet ids."""
    source = find_tiny_imagenet(root)
    if source is None:
        raise missing_error(NAME, root, ACCEPTED, [REMOTE])
    # The cache key of an unpacked folder uses only its lists and class folders: checking 110,000 files at each
    # start takes seconds.
    keys = [
        source,
        source / "wnids.txt",
        source / "val" / "val_annotations.txt",
        *sorted(source.glob("train/*/images")),
    ]
    inputs = [key for key in keys if key.exists()] if source.is_dir() else [source]
    cached = load_decoded(root, NAME, inputs, lambda folder: _decode(source, folder, num_classes))
    return cached.dataset(NAME, PREPARE, CropFlip())


def _decode(source: Path, folder: Path, num_classes: int) -> DecodedInfo:
    official = source.is_file() and md5_of(source) == REMOTE.md5
    with open_folder(source) if source.is_dir() else open_zip(source) as tree:
        ids = _class_ids(tree, num_classes)
        train = _training_images(tree, ids)
        test = _validation_images(tree, ids)
        for split, labelled in (("train", train), ("test", test)):
            images = new_array(folder, f"{split}_images", (len(labelled), 3, *SHAPE))
            for index, (name, _) in enumerate(labelled):
                images[index] = decode_image(tree.read(name), f"{source}: {name}", SHAPE)
            save_array(folder, f"{split}_labels", np.array([label for _, label in labelled], dtype=np.int64))
        words = _words(tree)
    per_class = np.bincount([label for _, label in train], minlength=num_classes)
    return DecodedInfo(
        classes=tuple(words.get(wnid, wnid) for wnid in ids),
        provenance={
            "source": source.name,
            "official": "yes" if official else "no",
            "verified": f"MD5 {REMOTE.md5}" if official else "structure only: not the published archive",
            "train": str(len(train)),
            "train per class": f"{per_class.min()} to {per_class.max()}",
            "test": str(len(test)),
        },
    )


def _class_ids(tree: FileTree, num_classes: int) -> list[str]:
    ids = tree.text("wnids.txt").split()
    if len(set(ids)) != num_classes or len(ids) != num_classes:
        raise DataError(
            f"{tree.path}: wnids.txt contains {len(ids)} classes ({len(set(ids))} different), expected {num_classes}"
        )
    return sorted(ids)


def _training_images(tree: FileTree, ids: list[str]) -> Labelled:
    """train/<wnid>/images/*.JPEG; raises DataError unless their classes are exactly `ids`."""
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    labelled: Labelled = []
    for name in sorted(tree.names):
        match PurePosixPath(name).parts:
            case ("train", wnid, "images", file):
                if wnid not in label_of:
                    raise DataError(f"{tree.path}: the class of {name} is not in wnids.txt")
                _check_suffix(tree, name, file)
                labelled.append((name, label_of[wnid]))
    missing = set(range(len(ids))) - {label for _, label in labelled}
    if missing:
        wnid = ids[min(missing)]
        raise DataError(
            f"{tree.path}: no images in train/{wnid}/images ({len(missing)} of {len(ids)} classes are missing)"
        )
    return labelled


def _validation_images(tree: FileTree, ids: list[str]) -> Labelled:
    """val/images/*.JPEG; each image needs exactly one line in val/val_annotations.txt."""
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    labels: dict[str, int] = {}
    annotations = "val/val_annotations.txt"
    for index, line in enumerate(tree.text(annotations).splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"{tree.path}: {annotations}, line {index}: {line!r} is not 'file<TAB>class…'")
        file, wnid = fields[:2]
        if wnid not in label_of:
            raise DataError(f"{tree.path}: {annotations}, line {index}: class {wnid!r} is not in wnids.txt")
        if file in labels:
            raise DataError(f"{tree.path}: {annotations}, line {index}: {file} occurs twice")
        labels[file] = label_of[wnid]
    image_files = {name.removeprefix("val/images/") for name in tree.names if name.startswith("val/images/")}
    for file in sorted(image_files):
        _check_suffix(tree, f"val/images/{file}", file)
        if file not in labels:
            raise DataError(f"{tree.path}: val/images/{file} has no line in {annotations}")
    for file in labels:
        if file not in image_files:
            raise DataError(f"{tree.path}: {annotations} contains {file}, which is not in val/images")
    return [(f"val/images/{file}", label) for file, label in labels.items()]


def _check_suffix(tree: FileTree, name: str, file: str) -> None:
    if PurePosixPath(file).suffix.lower() not in SUFFIXES:
        raise DataError(f"{tree.path}: {name} is not an image file")


def _words(tree: FileTree) -> dict[str, str]:
    """WordNet id → its first word. The file words.txt is optional."""
    if "words.txt" not in tree.names:
        return {}
    pairs = (line.partition("\t") for line in tree.text("words.txt").splitlines())
    return {wnid: words.split(",")[0].strip() for wnid, _, words in pairs if words.strip()}
