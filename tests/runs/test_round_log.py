"""What a run writes while it trains: checkpoints of which one is always whole, and lines that follow them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spherefed import files
from spherefed.client.client_state import StateDirectory
from spherefed.errors import RunError
from spherefed.messages import ModelState
from spherefed.runs import round_log
from spherefed.runs.digests import sha256
from spherefed.runs.round_log import CHECKPOINTS, Checkpoint, GrowingDigest, RoundLog, read_lines
from spherefed.server.validation import Rejection
from spherefed.tensors import digest


def checkpoint(next_round: int, size: int = 3) -> Checkpoint:
    """With every kind of tensor: parameters, buffers, a calibrated head, server state."""
    value = torch.full((size,), float(next_round))
    model = ModelState({"encoder.weight": value}, {"encoder.mean": value + 0.25}, {"weight": value[None] + 0.5})
    return Checkpoint(next_round, model, {"optimizer.encoder.weight": value + 0.75})


def assert_equal(found: Checkpoint | None, expected: Checkpoint) -> None:
    assert found is not None
    assert found.next_round == expected.next_round
    assert found.model.digest() == expected.model.digest()
    assert digest(found.server_state) == digest(expected.server_state)


def stored_rounds(folder: Path) -> dict[str, int]:
    """By file, read without the code under test."""
    return {
        name: int(load_file(folder / name)["params.encoder.weight"][0])
        for name in CHECKPOINTS
        if (folder / name).exists()
    }


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    RoundLog(tmp_path).save_checkpoint(checkpoint(5))
    assert_equal(RoundLog(tmp_path).newest_checkpoint(), checkpoint(5))


def test_a_checkpoint_without_head_and_server_state_comes_back_without_them(tmp_path: Path) -> None:
    plain = Checkpoint(1, ModelState({"w": torch.ones(2)}, {}), {})
    RoundLog(tmp_path).save_checkpoint(plain)
    found = RoundLog(tmp_path).newest_checkpoint()
    assert_equal(found, plain)
    assert found is not None
    assert found.model.head is None
    assert found.server_state == {}


def test_a_new_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert RoundLog(tmp_path).newest_checkpoint() is None


@pytest.mark.parametrize("reopened", [False, True])
def test_the_two_files_take_turns(tmp_path: Path, reopened: bool) -> None:
    saver = RoundLog(tmp_path)
    for next_round in range(1, 8):
        saver = RoundLog(tmp_path) if reopened else saver
        saver.save_checkpoint(checkpoint(next_round))
        newest, oldest = CHECKPOINTS[(next_round - 1) % 2], CHECKPOINTS[next_round % 2]
        expected = {newest: next_round, oldest: next_round - 1} if next_round > 1 else {newest: 1}
        assert stored_rounds(tmp_path) == expected
        assert_equal(RoundLog(tmp_path).newest_checkpoint(), checkpoint(next_round))


def test_a_checkpoint_smaller_than_the_one_before_leaves_no_remains_of_it(tmp_path: Path) -> None:
    saver = RoundLog(tmp_path)
    for next_round, size in ((1, 500), (2, 500), (3, 2), (4, 2)):
        saver.save_checkpoint(checkpoint(next_round, size))
    assert_equal(RoundLog(tmp_path).newest_checkpoint(), checkpoint(4, 2))
    (tmp_path / CHECKPOINTS[1]).unlink()
    assert_equal(RoundLog(tmp_path).newest_checkpoint(), checkpoint(3, 2))


def test_a_write_cut_at_any_byte_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = RoundLog(tmp_path)
    saver.save_checkpoint(checkpoint(1))
    saver.save_checkpoint(checkpoint(2))
    before = (tmp_path / CHECKPOINTS[0]).read_bytes()
    contents: list[bytes] = []
    monkeypatch.setattr(round_log, "overwrite", lambda path, content: contents.append(content))
    saver.save_checkpoint(checkpoint(3))
    (content,) = contents
    assert len(content) == len(before)
    for cut in range(len(content) + 1):
        (tmp_path / CHECKPOINTS[0]).write_bytes(content[:cut] + before[cut:])
        found = RoundLog(tmp_path).newest_checkpoint()
        assert found is not None
        assert_equal(found, checkpoint(found.next_round))  # never a mixture
        assert found.next_round in ((2, 3) if cut == len(content) else (2,))


@pytest.mark.usefixtures("flushing")
def test_a_checkpoint_is_on_the_disk_before_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []

    def watch(flush: Any) -> Any:
        def flush_and_note(handle: int) -> None:
            flush(handle)
            flushed.append(Path(f"/proc/self/fd/{handle}").readlink())

        return flush_and_note

    monkeypatch.setattr(os, "fsync", watch(os.fsync))
    monkeypatch.setattr(files, "_flush", watch(files._flush))
    saver = RoundLog(tmp_path)
    for next_round in range(1, 5):
        saver.save_checkpoint(checkpoint(next_round))
    first, second, *overwritten = flushed
    assert (first.name.startswith(f".{CHECKPOINTS[0]}."), second.name.startswith(f".{CHECKPOINTS[1]}.")) == (True, True)
    assert overwritten == [tmp_path / CHECKPOINTS[0], tmp_path / CHECKPOINTS[1]]


def test_the_first_checkpoint_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        RoundLog(tmp_path).save_checkpoint(checkpoint(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", ["next_round", "encoder.weight", "server"])
def test_a_change_of_any_part_shows_in_the_digest(tmp_path: Path, changed: str) -> None:
    RoundLog(tmp_path).save_checkpoint(checkpoint(1))
    path = tmp_path / CHECKPOINTS[0]
    tensors, metadata = files.read_tensors(path)
    if changed == "next_round":
        metadata["next_round"] = "2"
    else:
        (name,) = (name for name in tensors if changed in name and (changed == "server") == name.startswith("server."))
        tensors[name] += 1
    save_file(tensors, path, metadata)
    with pytest.raises(RunError, match="not whole"):
        RoundLog(tmp_path).newest_checkpoint()


def test_where_no_file_is_whole_the_error_names_both(tmp_path: Path) -> None:
    for name in CHECKPOINTS:
        (tmp_path / name).write_bytes(b"\xff" * 64)
    with pytest.raises(RunError) as caught:
        RoundLog(tmp_path).newest_checkpoint()
    assert all(str(tmp_path / name) in str(caught.value) for name in CHECKPOINTS)


# Lines


def line(index: int) -> dict[str, object]:
    return {"round": index, "note": "λ\n", "loss": 0.1 + index}


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_directory_or_a_pipe_in_place_of_a_checkpoint_is_an_error_that_says_what_to_do(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    log = RoundLog(tmp_path)
    for number in (4, 5):
        log.save_checkpoint(checkpoint(number))
    kept = {other: number for other, number in stored_rounds(tmp_path).items() if other != name}
    (tmp_path / name).unlink()
    make(tmp_path / name)
    for resumed in (RoundLog.roll_back, RoundLog.newest_checkpoint):
        with pytest.raises(RunError, match=rf"{name} cannot be read: .*not a regular file.*remove it"):
            resumed(RoundLog(tmp_path))
    (tmp_path / name).rmdir() if (tmp_path / name).is_dir() else (tmp_path / name).unlink()
    assert_equal(RoundLog(tmp_path).newest_checkpoint(), checkpoint(*kept.values()))


def test_lines_come_back_as_they_were_appended(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    for index in range(3):
        log.append_round(line(index), [Rejection(index, 4, "lost")] if index == 1 else [])
    assert read_lines(tmp_path / "rounds.jsonl") == [line(index) for index in range(3)]
    assert read_lines(tmp_path / "rejections.jsonl") == [{"round": 1, "client": 4, "cause": "lost"}]
    assert (tmp_path / "rounds.jsonl").read_bytes().count(b"\n") == 3


def test_a_run_without_rejections_has_no_file_of_them(tmp_path: Path) -> None:
    RoundLog(tmp_path).append_round(line(0), [])
    assert not (tmp_path / "rejections.jsonl").exists()
    assert read_lines(tmp_path / "rejections.jsonl") == []


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_last_line_cut_anywhere_is_left_out(tmp_path: Path, cut: int) -> None:
    log = RoundLog(tmp_path)
    log.append_round(line(0), [])
    log.append_round(line(1), [])
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_lines(path) == [line(0)]


def test_rolling_back_drops_what_follows_the_newest_checkpoint(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    for index in range(5):
        log.append_round(line(index), [Rejection(index, 0, "lost")])
        if index < 3:
            log.save_checkpoint(checkpoint(index + 1))
    log.append_rejections([Rejection(5, 1, "while finishing")])
    (tmp_path / f".{CHECKPOINTS[0]}.123-456").write_bytes(b"torn")
    assert_equal(RoundLog(tmp_path).roll_back(), checkpoint(3))
    assert [each["round"] for each in read_lines(tmp_path / "rounds.jsonl")] == [0, 1, 2]
    assert [each["round"] for each in read_lines(tmp_path / "rejections.jsonl")] == [0, 1, 2]
    assert not list(tmp_path.glob(".*"))


def test_rolling_back_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    log = RoundLog(tmp_path)
    log.append_round(line(0), [Rejection(0, 0, "lost")])
    assert log.roll_back() is None
    assert read_lines(tmp_path / "rounds.jsonl") == read_lines(tmp_path / "rejections.jsonl") == []


def test_a_copy_has_the_lines_up_to_the_checkpoint_and_the_checkpoint_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, new = tmp_path / "done", tmp_path / "new"
    done.mkdir(), new.mkdir()
    for index in range(4):
        RoundLog(done).append_round(line(index), [Rejection(index, 0, "lost")])
    RoundLog(new).copy_rounds(done, checkpoint(3))
    assert [each["round"] for each in read_lines(new / "rounds.jsonl")] == [0, 1, 2]
    assert [each["round"] for each in read_lines(new / "rejections.jsonl")] == [0, 1, 2]
    assert_equal(RoundLog(new).newest_checkpoint(), checkpoint(3))

    killed = tmp_path / "killed"
    killed.mkdir()

    def full(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(round_log, "write_bytes", full)
    with pytest.raises(OSError, match="full"):
        RoundLog(killed).copy_rounds(done, checkpoint(3))
    assert RoundLog(killed).newest_checkpoint() is None  # the run begins again from round 0


def test_client_states_follow_the_checkpoints(tmp_path: Path) -> None:
    store = StateDirectory(tmp_path / "client_states")
    log = RoundLog(tmp_path, store)
    for stamp in range(3):
        store.save(7, stamp, {"w": torch.full((1,), float(stamp))})
    log.save_checkpoint(checkpoint(2))  # the older checkpoint, none, could still be needed
    log.save_checkpoint(checkpoint(3))
    assert sorted(path.name for path in store.path.iterdir()) == ["7.1.safetensors", "7.2.safetensors"]
    (tmp_path / CHECKPOINTS[1]).write_bytes(b"damaged")
    log.roll_back()
    assert [path.name for path in store.path.iterdir()] == ["7.1.safetensors"]


def test_the_digest_of_a_growing_file_is_that_of_its_lines() -> None:
    rng = np.random.default_rng(0)
    lines = [rng.bytes(rng.integers(0, 50)) for _ in range(20)]
    growing = GrowingDigest()
    for number, line in enumerate(lines):
        growing.add(line)
        growing.mark(number + 1)
        assert growing.at(number + 1) == sha256(b"".join(lines[: number + 1]))
        assert growing.at(number) == sha256(b"".join(lines[:number]))
        assert growing.at(number - 1) is None
