"""Where data lives: the data root, what is found there, and how a missing file is reported."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.errors import DataError

ENVIRONMENT_VARIABLE = "SPHEREFED_DATA"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file as its authors publish it."""

    url: str
    md5: str
    size: int | None = None
    """Bytes, if published; for display only."""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def data_root(given: "str | Path | None" = None) -> Path:
    """The folder for archives and decoded caches: the given one, or `$SPHEREFED_DATA`, or `~/.cache/spherefed`."""
    chosen = given or os.environ.get(ENVIRONMENT_VARIABLE) or Path.home() / ".cache" / "spherefed"
    return Path(chosen).expanduser()


def first_present(candidates: Iterable[Path]) -> Path | None:
    """The first of these files or folders that exists."""
    return next((path for path in candidates if path.exists()), None)


def missing(name: str, root: Path, accepted: Sequence[str], files: Sequence[RemoteFile]) -> DataError:
    """The error for a data set that is not there: what to run, or which file to put where."""
    addresses = ", ".join(file.url for file in files)
    return DataError(
        f"data set {name!r} is not in {root}; run 'spherefed data get {name}', "
        f"or put {' or '.join(accepted)} there (published at {addresses})"
    )


def md5_of(path: Path) -> str:
    """Hex MD5 of a file: what the authors of these data sets publish, against damage rather than against malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def md5_of_bytes(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
