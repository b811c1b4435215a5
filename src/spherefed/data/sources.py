"""The registry of data sets by name. Each file format has its own module; to add a data set, add an entry here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from spherefed.components import find_component, is_component_name
from spherefed.data.arrays import arrays, digits
from spherefed.data.cifar import CIFAR10, CIFAR100, find_cifar, load_cifar
from spherefed.data.dataset import Dataset, check_examples
from spherefed.data.folder import load_folder
from spherefed.data.idx import REMOTES as FASHION_REMOTES
from spherefed.data.idx import find_fashion_mnist, load_fashion_mnist
from spherefed.data.in_memory import dataset_in_memory
from spherefed.data.labels import check_classes
from spherefed.data.locations import RemoteFile, data_root, user_path
from spherefed.data.resize import resized
from spherefed.data.tables import load_table
from spherefed.data.tiny_imagenet import REMOTE as TINY_REMOTE
from spherefed.data.tiny_imagenet import find_tiny_imagenet, load_tiny_imagenet
from spherefed.errors import ConfigError, DataError, SpherefedError
from spherefed.schema import suggest

__all__ = ["SOURCES", "Dataset", "Source", "arrays", "check_examples", "digits", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data set that is known by name: how to load it, its size, and the published files."""

    load: Callable[[Path], Dataset]
    """Data root → data set."""
    find: Callable[[Path], Path | None]
    """Data root → the file or folder that `load` reads; None if it is not present."""
    num_classes: int
    num_train: int
    num_test: int
    remotes: tuple[RemoteFile, ...] = ()
    """Empty: the data set is part of a library."""
    folder: str = "."
    """Folder for downloaded files, relative to the data root."""


SOURCES: dict[str, Source] = {
    **{
        name: Source(
            load=partial(load_cifar, files),
            find=partial(find_cifar, files),
            num_classes=files.num_classes,
            num_train=50_000,
            num_test=10_000,
            remotes=(files.remote,),
        )
        for name, files in (("cifar100", CIFAR100), ("cifar10", CIFAR10))
    },
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
"""Data sets that need no path, with the sizes of the official files."""


PREFIXES = ("arrays", "folder", "memory", "table")
OTHERS = ("folder:PATH", "arrays:FILE.npz", "table:FILE.csv", "package.module:Name")


def load(
    name: str,
    root: "str | Path | None" = None,
    *,
    min_classes: int = 2,
    resize: int | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
) -> Dataset:
    """The data set of this name: one of `SOURCES`, a folder, an array file, a table, or the function of a user.

    The data root (see `data_root`) has the files and the cache of decoded images. `min_classes` is 1 at a site, because
    others may have the other classes. `resize` is the side of smaller images. The columns are those of a table.
    """
    kind, _, path = name.partition(":")
    if label_column is not None and kind != "table":
        raise ConfigError(f"data.label_column is for tables, and {name!r} is none: leave it out, or name table:FILE")
    if is_own_source(name):
        return _own(name, min_classes)
    if path and kind == "folder":
        return load_folder(Path(path), data_root(root), min_classes=min_classes, resize=resize)
    if path and kind == "arrays":
        data = arrays(user_path(path), min_classes=min_classes)
    elif path and kind == "table":
        data = load_table(user_path(path), label_column, client_column, min_classes=min_classes)
    else:
        data = find_source(name).load(data_root(root))
    return data if resize is None else resized(data, resize, data_root(root))


def is_own_source(name: str) -> bool:
    """Whether data are loaded by a function of the user, `package.module:Name`."""
    return ":" in name and is_component_name(name) and name.partition(":")[0] not in PREFIXES


def _own(name: str, min_classes: int) -> Dataset:
    """What a user's function returns: a `Dataset`, or anything that `dataset_in_memory` accepts."""
    function = find_component(name, "data.name", "a function without arguments that returns a data set")
    if not callable(function):
        raise ConfigError(f"data.name {name!r} is a {type(function).__name__}; expected a function without arguments")
    try:
        made = function()
    except SpherefedError:
        raise
    except Exception as error:  # code of the user
        said = str(error).partition("\n")[0]
        raise DataError(
            f"data.name {name!r} fails with {type(error).__name__}: {said}; expected a function without arguments that "
            "returns a data set, such as (X, y)"
        ) from error
    if isinstance(made, Dataset):
        check_classes(made.classes, f"data.name {name!r}", min_classes)
        return replace(made, name=name)
    return replace(dataset_in_memory(made, min_classes=min_classes), name=name)


def find_source(name: str) -> Source:
    """The entry of this name; raises a ConfigError that lists the allowed names."""
    if name not in SOURCES:
        raise _unknown(name)
    return SOURCES[name]


def _unknown(name: str) -> ConfigError:
    if name.startswith("memory:"):
        return ConfigError(f"the data {name!r} were passed in memory: pass the same data again, or name a file")
    return ConfigError(f"unknown data set {name!r}; {suggest(name, [*SOURCES, *OTHERS])}")
