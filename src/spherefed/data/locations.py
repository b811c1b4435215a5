"""The data root, published files, and the error for a missing data set."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.errors import DataError

ENVIRONMENT_VARIABLE = "SPHEREFED_DATA"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file published by the authors of a data set."""

    url: str
    md5: str
    size: int | None = None
    """Size in bytes, if published; for display only."""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def data_root(given: "str | Path | None" = None) -> Path:
    """The folder of archives and decoded caches: the given one, else `$SPHEREFED_DATA`, else `~/.cache/spherefed`."""
    root = given or os.environ.get(ENVIRONMENT_VARIABLE) or Path.home() / ".cache" / "spherefed"
    return user_path(root)


def user_path(text: "str | Path") -> Path:
    """A path that a user gave, with `~` for the home folder."""
    if "\0" in str(text):
        raise DataError(f"a path must not contain a NUL character, got {str(text)[:200]!r}")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise DataError(f"the path {str(text)[:200]!r} names a user that does not exist here: {error}") from error


def first_existing(candidates: Iterable[Path]) -> Path | None:
    """The first of these files or folders that exists, or None."""
    return next((path for path in candidates if path.exists()), None)


def missing_error(name: str, root: Path, accepted: Sequence[str], files: Sequence[RemoteFile]) -> DataError:
    """The error for a data set that is not present, with the command to run and the files to copy."""
    urls = ", ".join(file.url for file in files)
    elsewhere = "" if root == data_root() else f" --data-root {root}"
    folder = "" if root.is_dir() else ", which is no folder (--data-root or $SPHEREFED_DATA)"
    return DataError(
        f"data set {name!r} is not in {root}{folder}; run 'spherefed data get {name}{elsewhere}', "
        f"or copy {' or '.join(accepted)} there (published at {urls})"
    )


def check_data_root(given: "str | Path | None") -> None:
    """Refuse a data root that the user names and that does not exist."""
    if given is not None and not (root := user_path(given)).is_dir():
        raise DataError(
            f"--data-root {root} is no folder; name a folder that holds data sets, or run "
            f"'spherefed data get NAME --data-root {root}', which makes it"
        )


def md5_of(path: Path) -> str:
    """Hex MD5 of a file, the digest that the authors publish. It detects damage, not deliberate changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of_bytes(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
