"""Downloads from a server on the loopback interface: whole, interrupted, resumed, damaged, absent."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import spherefed.data.catalog
from spherefed.data.catalog import get_dataset
from spherefed.data.cifar import load_cifar
from spherefed.data.download import fetch, progress_bars
from spherefed.data.locations import RemoteFile
from spherefed.data.sources import SOURCES
from spherefed.errors import ConfigError, DataError
from support.data_files import cifar100_files, cifar100_members, fashion_members, tar_of

CONTENT = bytes(range(256)) * 4000


@dataclass
class Server:
    """Files by name, and how the server behaves: it hangs up after so many bytes, or knows no ranges."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """Bytes sent before hanging up, per request; afterwards requests are answered in full."""
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def remote(self, name: str) -> RemoteFile:
        return RemoteFile(url=f"{self.address}/{name}", md5=hashlib.md5(self.files[name]).hexdigest())


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            content = state.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            limit = state.cut_after.pop(0) if state.cut_after else len(content)
            self.wfile.write(content[start : start + limit])
            self.close_connection = True

        def log_message(self, *_) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    listening.shutdown()
    listening.server_close()
    thread.join()


def test_a_file_is_fetched_once_and_progress_is_told(server, tmp_path):
    server.files["a.bin"] = CONTENT
    told: list[tuple[str, int, int | None]] = []
    (path,) = fetch([server.remote("a.bin")], tmp_path / "deep" / "er", progress=lambda *news: told.append(news))
    assert path.read_bytes() == CONTENT
    assert told[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    fetch([server.remote("a.bin")], tmp_path / "deep" / "er")
    assert len(server.requests) == 1
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]


def test_a_broken_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.files["a.bin"] = CONTENT
    server.cut_after = [262_144, 393_216]
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=262144-", "bytes=655360-"]


def test_a_later_run_resumes_what_an_earlier_one_left(server, tmp_path):
    server.files["a.bin"] = CONTENT
    server.cut_after = [262_144, 0, 0]
    with pytest.raises(DataError, match="interrupted; 262144 bytes are kept, run the command again") as caught:
        fetch([server.remote("a.bin")], tmp_path)
    assert "a.bin" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin.part"]
    server.cut_after = []
    server.requests.clear()
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/a.bin", "bytes=262144-")]
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.files["a.bin"] = CONTENT
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_that_is_whole_is_used_and_one_too_long_is_dropped(server, tmp_path, left):
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes((CONTENT + b"12345")[:left])
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing_and_the_next_attempt_starts_afresh(server, tmp_path):
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(b"another file's beginning")
    with pytest.raises(DataError, match="published MD5"):
        fetch([server.remote("a.bin")], tmp_path)
    assert list(tmp_path.iterdir()) == []
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_damaged_file_in_place_is_fetched_again(server, tmp_path):
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin").write_bytes(CONTENT[:-1])
    (path,) = fetch([server.remote("a.bin")], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_file_the_server_does_not_have_is_a_data_error(server, tmp_path):
    remote = RemoteFile(url=f"{server.address}/absent.bin", md5="0" * 32)
    with pytest.raises(DataError, match="404"):
        fetch([remote], tmp_path)


def test_without_a_connection_the_error_says_which_file_to_put_where(server, tmp_path):
    remote = RemoteFile(url="http://127.0.0.1:9/a.bin", md5="0" * 32)
    with pytest.raises(DataError) as caught:
        fetch([remote], tmp_path)
    for words in (remote.url, "no connection", str(tmp_path / "a.bin"), remote.md5):
        assert words in str(caught.value)


def test_a_place_that_cannot_be_written_is_a_data_error(server, tmp_path):
    server.files["a.bin"] = CONTENT
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="--data-root"):
        fetch([server.remote("a.bin")], tmp_path / "file")


def test_get_takes_the_files_of_a_data_set_from_a_mirror(server, tmp_path, monkeypatch):
    members = cifar100_members()
    files = cifar100_files(members)
    archive = tar_of(members, tmp_path / "cifar-100-python.tar.gz").read_bytes()
    server.files["cifar-100-python.tar.gz"] = archive
    with pytest.raises(DataError, match="published MD5"):
        get_dataset("cifar100", tmp_path / "root", mirror=server.address)
    source = SOURCES["cifar100"]
    remote = server.remote("cifar-100-python.tar.gz")
    monkeypatch.setattr(
        spherefed.data.catalog, "find_source", lambda name: type(source)(**_fields(source) | {"remotes": (remote,)})
    )
    get_dataset("cifar100", tmp_path / "root", mirror=f"{server.address}/")
    assert len(load_cifar(files, tmp_path / "root").train) == 20


def test_get_puts_fashion_mnist_where_it_is_found(server, tmp_path, monkeypatch):
    source = SOURCES["fashion-mnist"]
    server.files = {f"{name}.gz": gzip.compress(content) for name, content in fashion_members().items()}
    remotes = tuple(server.remote(name) for name in server.files)
    changed = type(source)(**_fields(source) | {"remotes": remotes})
    monkeypatch.setattr(spherefed.data.catalog, "find_source", lambda name: changed)
    assert len(get_dataset("fashion-mnist", tmp_path)) == 4
    assert source.find(tmp_path) == tmp_path / "fashion-mnist"
    assert len(source.load(tmp_path).train) == 12


def test_get_of_a_library_data_set_needs_nothing(tmp_path):
    assert get_dataset("digits", tmp_path) == []
    with pytest.raises(ConfigError, match="did you mean 'cifar10"):
        get_dataset("cifar_10", tmp_path)


def test_progress_bars_write_to_the_error_stream_only(capsys):
    with progress_bars() as show:
        show("a.bin", 10, 100)
        show("a.bin", 100, 100)
        show("b.bin", 5, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a.bin" in captured.err


def _fields(source) -> dict:
    return {name: getattr(source, name) for name in source.__dataclass_fields__}
