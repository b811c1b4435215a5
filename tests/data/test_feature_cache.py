"""The cache of features: computed once, never stale, safe with two processes and after a kill."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from spherefed.data.feature_cache import BLOCK_ROWS, cached_features
from spherefed.errors import DataError

DIM = 3


class Counting:
    """Features (x, 2x, 3x) of scalar inputs, and how many rows were computed."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs, self.num = inputs, 0

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self.num += len(rows)
        return self.inputs[rows].float()[:, None] * torch.tensor([1.0, 2.0, 3.0])


def features(root: Path, inputs: torch.Tensor, rows: torch.Tensor, key: str = "k") -> tuple[torch.Tensor, int]:
    compute = Counting(inputs)
    return cached_features(root, inputs, rows, key=key, dim=DIM, compute=compute), compute.num


def test_rows_are_computed_once_and_only_if_needed(tmp_path: Path) -> None:
    inputs = torch.arange(1, 1001, dtype=torch.uint8)
    first, num = features(tmp_path, inputs, torch.arange(0, 600))
    assert num == 600
    more, num = features(tmp_path, inputs, torch.arange(400, 1000))
    assert num == 400
    again, num = features(tmp_path, inputs, torch.arange(1000))
    assert num == 0
    expected = np.outer(inputs.numpy(), [1, 2, 3]).astype(np.float32)
    np.testing.assert_array_equal(first[:600].numpy(), expected[:600])
    np.testing.assert_array_equal(more[400:].numpy(), expected[400:])
    np.testing.assert_array_equal(again.numpy(), expected)


def test_a_changed_pixel_shape_dtype_or_key_is_computed_again(tmp_path: Path) -> None:
    inputs, rows = torch.arange(1, 51, dtype=torch.uint8), torch.arange(50)
    features(tmp_path, inputs, rows)
    changed = inputs.clone()
    changed[7] += 1
    for given, key in ((changed, "k"), (inputs.to(torch.int16), "k"), (inputs, "other")):
        assert features(tmp_path, given, rows, key)[1] == 50
    assert features(tmp_path, inputs, rows)[1] == 0


def test_changes_to_the_mapped_features_do_not_reach_the_file(tmp_path: Path) -> None:
    inputs, rows = torch.arange(1, 51, dtype=torch.uint8), torch.arange(50)
    features(tmp_path, inputs, rows)[0].zero_()
    assert float(features(tmp_path, inputs, rows)[0].sum()) > 0


def test_damaged_files_are_replaced(tmp_path: Path) -> None:
    inputs, rows = torch.arange(1, 51, dtype=torch.uint8), torch.arange(50)
    expected = features(tmp_path, inputs, rows)[0].clone()
    for name in ("features.npy", "done.npy"):
        (damaged,) = tmp_path.glob(f"cache/*/{name}")
        damaged.write_bytes(damaged.read_bytes()[:100])
        again, num = features(tmp_path, inputs, rows)
        assert num == 50
        assert torch.equal(again, expected)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(DataError, match="cannot write features to"):
        features(tmp_path, torch.arange(3), torch.arange(3))


def test_a_full_disk_is_an_error_in_one_line_and_leaves_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    inputs, rows = torch.arange(1, 51, dtype=torch.uint8), torch.arange(50)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(DataError, match=r"cannot write features to .*No space left on device; choose a data root"):
            features(tmp_path, inputs, rows)
    found, num = features(tmp_path, inputs, rows)
    assert num == 50
    assert torch.equal(found[:, 0], inputs.float())


def slow_build(root: Path, counts: "multiprocessing.Queue[int]", pause: float) -> None:
    inputs = torch.arange(4 * BLOCK_ROWS) % 251
    compute = Counting(inputs)

    def slowly(rows: torch.Tensor) -> torch.Tensor:
        time.sleep(pause)
        return compute(rows)

    cached_features(root, inputs, torch.arange(len(inputs)), key="k", dim=DIM, compute=slowly)
    counts.put(compute.num)


@pytest.mark.slow
def test_two_processes_at_once_compute_every_row_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    counts = context.Queue()
    processes = [context.Process(target=slow_build, args=(tmp_path, counts, 0.05)) for _ in range(2)]
    for process in processes:
        process.start()
    computed = sorted(counts.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert computed == [0, 4 * BLOCK_ROWS]
    inputs = torch.arange(4 * BLOCK_ROWS) % 251
    assert torch.equal(features(tmp_path, inputs, torch.arange(len(inputs)))[0][:, 1], 2.0 * inputs)


@pytest.mark.slow
def test_a_killed_build_goes_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    counts = context.Queue()
    process = context.Process(target=slow_build, args=(tmp_path, counts, 0.3))
    process.start()
    deadline = time.monotonic() + 60
    while not any(b"\1" in done.read_bytes()[128:] for done in tmp_path.glob("cache/*/done.npy")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    inputs = torch.arange(4 * BLOCK_ROWS) % 251
    whole, num = features(tmp_path, inputs, torch.arange(len(inputs)))
    assert 0 < num < len(inputs)
    assert torch.equal(whole[:, 2], 3.0 * inputs)
