"""Download published files with pooch, which checks their MD5. Interrupted downloads are resumed."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spherefed.data.locations import RemoteFile, md5_of
from spherefed.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far, and total bytes (None if the server does not send a length)."""


def fetch(files: Sequence[RemoteFile], folder: Path, *, progress: Progress | None = None) -> list[Path]:
    """Download the files that are not present; return the paths of all files. Each has its published MD5."""
    return [_fetch_one(file, folder, progress or _no_progress) for file in files]


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show a progress bar for each file on standard error while the context is open."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def update_bar(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield update_bar


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumingDownload:
    """A downloader for pooch that appends to `partial` and renames it when it is complete.

    pooch's own downloader starts from zero each time. If a connection breaks after it transferred some bytes, the
    download is resumed immediately. If it transferred none, the error is raised; the next call resumes from
    `partial`.
    """

    partial: Path
    name: str
    progress: Progress
    timeout: float = 30.0
    chunk_size: int = 1 << 16

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        while True:
            size_before = self._size()
            try:
                self._resume(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if self._size() <= size_before:
                    raise
        self.partial.replace(output_file)

    def _resume(self, url: str) -> None:
        import requests

        start = self._size()
        # No content encoding: ranges count the bytes of the response body, which must be those of the file.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == 416:  # range not satisfiable: `partial` is complete, or the file has changed
                self._restart_if_changed(response.headers.get("Content-Range", ""), start, url)
                return
            response.raise_for_status()
            resumed = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(
                f"bytes {start}-"
            )
            done = start if resumed else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            with self.partial.open("ab" if resumed else "wb") as file:
                for chunk in response.iter_content(self.chunk_size):
                    file.write(chunk)
                    done += len(chunk)
                    self.progress(self.name, done, total)

    def _restart_if_changed(self, content_range: str, start: int, url: str) -> None:
        if content_range != f"bytes */{start}":
            self.partial.unlink()
            self._resume(url)

    def _size(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0


def _fetch_one(file: RemoteFile, folder: Path, progress: Progress) -> Path:
    import pooch
    import requests

    target = folder / file.name
    manually = f"or download it on another machine and copy it to {target} (MD5 {file.md5})"
    if target.is_file() and md5_of(target) == file.md5:
        return target
    partial = folder / f"{file.name}.part"
    download = ResumingDownload(partial=partial, name=file.name, progress=progress)
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(file.url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=download)
    except requests.RequestException as error:
        kept = f"{partial.stat().st_size} bytes are kept, run the command again to resume, " if partial.exists() else ""
        raise DataError(f"cannot download {file.url}: {_reason(error)}; {kept}{manually}") from error
    except ValueError as error:  # pooch: the hash differs
        raise DataError(
            f"{file.url} does not have its published MD5 {file.md5}; the download was deleted: try again, {manually}"
        ) from error
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}; choose another --data-root") from error
    return target


def _reason(error: Exception) -> str:
    """The cause in a few words; the text of requests' exceptions contains three nested exceptions."""
    import requests

    if isinstance(error, requests.HTTPError):
        return str(error)
    if isinstance(error, requests.Timeout):
        return "the server does not answer"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was interrupted"
    return "no connection" if isinstance(error, requests.ConnectionError) else str(error)


def _no_progress(name: str, done: int, total: int | None) -> None:
    pass
