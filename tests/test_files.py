"""Files: written whole or not at all, overwritten where they lie, and tensors with texts beside them."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

from spherefed.errors import RunError
from spherefed.files import overwrite, read_tensors, tensors_from_bytes, tensors_to_bytes, write_bytes, write_tensors

pytestmark = pytest.mark.usefixtures("flushing")

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3).T,  # not contiguous
    "b": torch.tensor([2**62], dtype=torch.int64),
    "c": torch.zeros(0),
}
TEXTS = {"round": "3", "note": "λ"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def full(handle: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_replaces_the_old_one_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"", b"second"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, b"", b"short", b"much longer than what comes next"])
def test_overwriting_leaves_exactly_the_new_content_in_the_same_file(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
        inode = path.stat().st_ino
    overwrite(path, b"new content")
    assert path.read_bytes() == b"new content"
    assert before is None or path.stat().st_ino == inode


def test_overwriting_goes_on_where_the_system_wrote_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, bytes(content)[:3]))
    overwrite(tmp_path / "file", b"eleven byte")
    assert (tmp_path / "file").read_bytes() == b"eleven byte"


def test_tensors_and_texts_come_back() -> None:
    tensors, texts = tensors_from_bytes(tensors_to_bytes(TENSORS, TEXTS))
    assert texts == TEXTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_the_format_is_safetensors_own(tmp_path: Path) -> None:
    content = tensors_to_bytes(TENSORS, TEXTS)
    assert all(torch.equal(load(content)[name], tensor) for name, tensor in TENSORS.items())
    (tmp_path / "file").write_bytes(content)
    with safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata() == TEXTS
    assert tensors_from_bytes(save({"x": torch.ones(2)}))[1] == {}


def test_bfloat16_which_numpy_does_not_have_comes_back() -> None:
    half = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    tensors, texts = tensors_from_bytes(tensors_to_bytes({"h": half, "f": torch.ones(1)}, TEXTS))
    assert torch.equal(tensors["h"], half)
    assert texts == TEXTS


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, tensors_to_bytes(TENSORS, TEXTS)[:-1]])
def test_what_is_no_tensor_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(RunError, match="file cannot be read"):
        read_tensors(tmp_path / "file")
    with pytest.raises(ValueError, match=r"\w"):
        tensors_from_bytes(content)


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", TENSORS, TEXTS)
    tensors, texts = read_tensors(tmp_path / "file")
    assert torch.equal(tensors["a"], TENSORS["a"])
    assert texts == TEXTS
    with pytest.raises(RunError, match="missing cannot be read"):
        read_tensors(tmp_path / "missing")
