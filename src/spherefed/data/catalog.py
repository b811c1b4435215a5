"""Functions behind `spherefed data list | get | check`. They return values; the command line prints them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from spherefed.data.dataset import Dataset, channel_statistics
from spherefed.data.download import Progress, fetch
from spherefed.data.examples import Examples
from spherefed.data.locations import data_root, md5_of
from spherefed.data.sources import SOURCES, find_source, load
from spherefed.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A data set that is known by name, and its path if it is present."""

    name: str
    num_classes: int
    num_train: int
    num_test: int
    path: Path | None
    """The file or folder that `load` reads; None: not present."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Description of a data set after reading it."""

    name: str
    num_train: int
    num_test: int
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    """Examples per class."""
    test_counts: tuple[int, ...]
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    """Per channel, of the training part, before normalization (bytes divided by 255)."""
    std: tuple[float, ...]
    provenance: dict[str, str]

    @property
    def official(self) -> bool:
        return self.provenance.get("official") == "yes"


def list_datasets(root: "str | Path | None" = None) -> list[Listing]:
    """All data sets that are known by name."""
    root_folder = data_root(root)
    return [
        Listing(
            name=name,
            num_classes=source.num_classes,
            num_train=source.num_train,
            num_test=source.num_test,
            path=source.find(root_folder),
        )
        for name, source in SOURCES.items()
    ]


def get_dataset(
    name: str, root: "str | Path | None" = None, *, progress: Progress | None = None, mirror: str | None = None
) -> list[Path]:
    """Download the official files into the data root. Continues an interrupted download.

    `mirror` is the URL of a folder with the same files, which must have the published MD5s too.
    """
    source = find_source(name)
    files = source.remotes
    if mirror is not None:
        files = tuple(replace(file, url=f"{mirror.rstrip('/')}/{file.name}") for file in files)
    return fetch(files, data_root(root) / source.folder, progress=progress)


def check_dataset(name: str, root: "str | Path | None" = None) -> Check:
    """Read the data set and describe it. Compares downloaded archives with their published MD5 again."""
    root_folder = data_root(root)
    dataset = load(name, root_folder)
    official = dataset.provenance.get("official") == "yes"
    return _describe(dataset, dataset.provenance | _archive_digest(name, root_folder, official=official))


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


def _archive_digest(name: str, root: Path, *, official: bool) -> dict[str, str]:
    """The MD5 of the archive, computed now: the file can be damaged after it was decoded into the cache."""
    source = SOURCES.get(name)
    archive = source.find(root) if source else None
    if source is None or archive is None or not archive.is_file():
        return {}
    actual = md5_of(archive)
    published = {file.name: file.md5 for file in source.remotes}.get(archive.name)
    if name.startswith("cifar") and published is not None and actual != published:
        raise DataError(f"{archive} has MD5 {actual}, published is {published}; run 'spherefed data get {name}'")
    if actual == published:
        return {"archive md5": actual, "archive": "as published"}
    inside = (
        "the files inside are those published" if official else "its contents were not compared with those published"
    )
    return {"archive md5": actual, "archive": f"packed by somebody else; {inside}"}


def _channel_statistics(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if examples.inputs.dtype == torch.uint8:
        return channel_statistics(examples.inputs.numpy())
    pixels = examples.inputs.to(torch.float64).numpy()
    axes = (0, *range(2, pixels.ndim))
    return tuple(np.mean(pixels, axis=axes).tolist()), tuple(np.std(pixels, axis=axes).tolist())
