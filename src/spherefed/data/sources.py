"""Data sets by name: the registry. Each family of files has its own module; a new data set is one entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spherefed.data.arrays import arrays, digits
from spherefed.data.cifar import CIFAR10, CIFAR100, CifarFiles, find_cifar, load_cifar
from spherefed.data.dataset import Dataset, check_examples
from spherefed.data.folder import load_folder
from spherefed.data.idx import REMOTES as FASHION_REMOTES
from spherefed.data.idx import find_fashion_mnist, load_fashion_mnist
from spherefed.data.place import RemoteFile, data_root
from spherefed.data.tiny_imagenet import REMOTE as TINY_REMOTE
from spherefed.data.tiny_imagenet import find_tiny_imagenet, load_tiny_imagenet
from spherefed.errors import ConfigError
from spherefed.schema import nearest

__all__ = ["SOURCES", "Dataset", "Source", "arrays", "check_examples", "digits", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data set that is known by name: how to load it, and what its authors published."""

    load: Callable[[Path], Dataset]
    """Data root → data set."""
    find: Callable[[Path], Path | None]
    """Data root → the file or folder that would be read; None if it is not there."""
    num_classes: int
    num_train: int
    num_test: int
    remotes: tuple[RemoteFile, ...] = ()
    """Empty: it comes with a library."""
    folder: str = "."
    """Where under the data root the downloaded files go."""


def _cifar(files: CifarFiles) -> Source:
    return Source(
        load=partial(load_cifar, files),
        find=partial(find_cifar, files),
        num_classes=files.num_classes,
        num_train=50_000,
        num_test=10_000,
        remotes=(files.remote,),
    )


SOURCES: dict[str, Source] = {
    "cifar100": _cifar(CIFAR100),
    "cifar10": _cifar(CIFAR10),
    "tiny-imagenet": Source(
        load=load_tiny_imagenet,
        find=find_tiny_imagenet,
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
        remotes=(TINY_REMOTE,),
    ),
    "fashion-mnist": Source(
        load=load_fashion_mnist,
        find=find_fashion_mnist,
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        remotes=FASHION_REMOTES,
        folder="fashion-mnist",
    ),
    "digits": Source(load=lambda root: digits(), find=lambda root: root, num_classes=10, num_train=1_438, num_test=359),
}
"""Data sets that need no path. Sizes are those of the official files."""


def load(name: str, root: "str | Path | None" = None, *, fewest_classes: int = 2) -> Dataset:
    """The data set of this name: one of `SOURCES`, `folder:PATH` or `arrays:FILE.npz`.

    Files are looked for, and decoded images kept, under the data root (see `data_root`). A site's own folder may have
    a single class, where others have the rest.
    """
    kind, _, path = name.partition(":")
    if path and kind == "arrays":
        return arrays(Path(path))
    if path and kind == "folder":
        return load_folder(Path(path), data_root(root), fewest_classes=fewest_classes)
    return find_source(name).load(data_root(root))


def find_source(name: str) -> Source:
    """The entry of this name, or a ConfigError that says which there are."""
    if name not in SOURCES:
        raise ConfigError(f"unknown data set {name!r}; {nearest(name, [*SOURCES, 'folder:PATH', 'arrays:FILE.npz'])}")
    return SOURCES[name]
