"""What `spherefed data list | get | check` do: plain values in and out, printed elsewhere."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from spherefed.data.dataset import Dataset, channel_statistics
from spherefed.data.download import Progress, fetch
from spherefed.data.examples import Examples
from spherefed.data.place import data_root, md5_of
from spherefed.data.sources import SOURCES, find_source, load
from spherefed.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A data set that is known by name, and whether it is here."""

    name: str
    num_classes: int
    num_train: int
    num_test: int
    found: Path | None
    """The file or folder that would be read; None: not present."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was found when a data set was read."""

    name: str
    num_train: int
    num_test: int
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    """Examples per class."""
    test_counts: tuple[int, ...]
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    """Per channel, of the training part, as the encoder would see it without normalisation (bytes divided by 255)."""
    std: tuple[float, ...]
    provenance: dict[str, str]

    @property
    def official(self) -> bool:
        return self.provenance.get("official") == "yes"


def list_datasets(root: "str | Path | None" = None) -> list[Listing]:
    """Every data set that is known by name."""
    place = data_root(root)
    return [
        Listing(
            name=name,
            num_classes=source.num_classes,
            num_train=source.num_train,
            num_test=source.num_test,
            found=source.find(place),
        )
        for name, source in SOURCES.items()
    ]


def get_dataset(
    name: str, root: "str | Path | None" = None, *, progress: Progress | None = None, mirror: str | None = None
) -> list[Path]:
    """Download the official files into the data root, or go on where an earlier attempt stopped.

    `mirror` is the address of a folder that holds the same files; their published MD5s are asked of it just the same.
    """
    source = find_source(name)
    files = source.remotes
    if mirror is not None:
        files = tuple(replace(file, url=f"{mirror.rstrip('/')}/{file.name}") for file in files)
    return fetch(files, data_root(root) / source.folder, progress=progress)


def check_dataset(name: str, root: "str | Path | None" = None) -> Check:
    """Read the data set and describe it; downloaded archives are compared with their published MD5 once more."""
    place = data_root(root)
    dataset = load(name, place)
    return _describe(dataset, dataset.provenance | _archive_digest(name, place))


def _describe(dataset: Dataset, provenance: dict[str, str]) -> Check:
    mean, std = _channel_statistics(dataset.train)
    counts = [
        tuple(torch.bincount(part.all_labels(), minlength=dataset.num_classes).tolist())
        for part in (dataset.train, dataset.test)
    ]
    return Check(
        name=dataset.name,
        num_train=len(dataset.train),
        num_test=len(dataset.test),
        classes=dataset.classes,
        train_counts=counts[0],
        test_counts=counts[1],
        input_shape=dataset.input_shape,
        mean=mean,
        std=std,
        provenance=provenance,
    )


def _archive_digest(name: str, root: Path) -> dict[str, str]:
    """The archive's MD5 as it is now; the decoded cache may be older than damage to the file."""
    source = SOURCES.get(name)
    found = source.find(root) if source else None
    if source is None or found is None or not found.is_file():
        return {}
    actual = md5_of(found)
    published = {file.name: file.md5 for file in source.remotes}.get(found.name)
    if name.startswith("cifar") and published is not None and actual != published:
        raise DataError(f"{found} has MD5 {actual}, published is {published}; run 'spherefed data get {name}'")
    return {"archive md5": actual, "archive": "as published" if actual == published else "not the published archive"}


def _channel_statistics(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if examples.inputs.dtype == torch.uint8:
        return channel_statistics(examples.inputs.numpy())
    pixels = examples.inputs.to(torch.float64).numpy()
    axes = (0, *range(2, pixels.ndim))
    return tuple(np.mean(pixels, axis=axes).tolist()), tuple(np.std(pixels, axis=axes).tolist())
