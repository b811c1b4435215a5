"""Read archives in memory, without unpacking them to disk, so that no member can be written anywhere.

An archive that contains a path outside its folder, a link, a device or a decompression bomb is rejected as a whole: it
is not what the authors published.
"""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import Self

from spherefed.errors import DataError

MAX_MEMBER_BYTES = 512 * 2**20
MAX_TOTAL_BYTES = 8 * 2**30
MAX_RATIO = 250
"""An archive with a larger ratio of unpacked to packed size is rejected, if its unpacked size exceeds BOMB_BYTES."""
BOMB_BYTES = 64 * 2**20
MAX_EXTENSION_BYTES = 2**20
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of headers that belong to the member after them."""


@dataclass(frozen=True, eq=False, slots=True)
class FileTree:
    """The files of a zip archive or of a folder, by relative path."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]

    def text(self, name: str) -> str:
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: {name} is not text: {error}") from error


def read_tar(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The contents of the wanted members of a (compressed) tar file. Checks the header of every member."""
    contents: dict[str, bytes] = {}
    total = 0
    try:
        # Stream mode reads each compressed byte once.
        with tarfile.open(path, mode="r|*", tarinfo=_Member) as archive:
            for member in archive:
                _check_name(path, member.name)
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
                    raise DataError(
                        f"{path}: member {member.name!r} is a link or a special file; only plain files are accepted"
                    )
                total += member.size
                _check_size(path, member.name, member.size, total)
                if member.name in wanted and member.isreg():
                    file = archive.extractfile(member)
                    assert file is not None, "a regular member has content"
                    contents[member.name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged or not a tar archive: {error}; download it again") from error
    for name in wanted:
        if name not in contents:
            raise DataError(f"{path}: member {name!r} is missing; is this the official archive?")
    return contents


class _Member(tarfile.TarInfo):
    """A member whose extension headers are small: tarfile reads them into memory before it shows the member."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.GNUTYPE_SPARSE:  # its map may be of any length
            raise ValueError("a sparse file; only plain files are accepted")
        if member.type in EXTENSIONS and member.size > MAX_EXTENSION_BYTES:
            raise ValueError(f"an extension header of {member.size} bytes, at most {MAX_EXTENSION_BYTES} are read")
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        """Not tarfile's, which reads a sparse map of any length from the content of the member."""
        raise ValueError("a sparse file; only plain files are accepted")


@contextmanager
def open_zip(path: Path) -> Iterator[FileTree]:
    """The files of a zip archive. If all files are in one top-level folder, their names do not contain it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            check_zip(path, archive)
            tops = {info.filename.split("/", 1)[0] for info in members}
            prefix = f"{tops.pop()}/" if len(tops) == 1 and all("/" in i.filename for i in members) else ""

            def read(name: str) -> bytes:
                try:
                    return archive.read(prefix + name)
                except KeyError:
                    raise DataError(f"{path}: {prefix}{name} is missing; is this the official archive?") from None
                except _ZIP_ERRORS as error:
                    raise DataError(
                        f"{path}: {prefix}{name} is damaged: {error}; download the archive again"
                    ) from error

            yield FileTree(path, tuple(info.filename.removeprefix(prefix) for info in members), read)
    except _ZIP_ERRORS as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged or not a zip archive: {error}; download it again") from error


def check_zip(path: Path, archive: zipfile.ZipFile) -> None:
    """Reject paths outside the folder, links and bombs. zipfile never reads more bytes than the sizes checked here."""
    total = packed = 0
    for info in archive.infolist():
        _check_name(path, info.filename)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"{path}: member {info.filename!r} is a link; only plain files are accepted")
        total += info.file_size
        packed += info.compress_size
        _check_size(path, info.filename, info.file_size, total)
    if total > BOMB_BYTES and total > MAX_RATIO * max(packed, 1):
        raise DataError(
            f"{path} unpacks {packed} bytes into {total}, more than {MAX_RATIO} times as much; "
            "such archives are not unpacked"
        )


@contextmanager
def open_folder(path: Path) -> Iterator[FileTree]:
    """The files below a folder, without files and folders whose name starts with a dot."""
    names = sorted(
        relative.as_posix()
        for relative in (file.relative_to(path) for file in path.rglob("*") if file.is_file())
        if not any(part.startswith(".") for part in relative.parts)
    )

    def read(name: str) -> bytes:
        try:
            return (path / name).read_bytes()
        except OSError as error:
            raise DataError(f"{path / name} cannot be read: {error.strerror}") from error

    yield FileTree(path, tuple(names), read)


_ZIP_ERRORS = (zipfile.BadZipFile, EOFError, OSError, zlib.error, ValueError, NotImplementedError, RuntimeError)


def _check_name(path: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise DataError(f"{path}: member {name!r} is a path outside its folder; such archives are not read")


def _check_size(path: Path, name: str, size: int, total: int) -> None:
    if size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
        raise DataError(
            f"{path}: member {name!r} of {size} bytes (together {total}) is larger than any published data set here "
            f"({MAX_MEMBER_BYTES} per file, {MAX_TOTAL_BYTES} in all)"
        )
