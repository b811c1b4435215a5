"""The official files themselves, in a folder that the environment variable SPHEREFED_TEST_DATA names."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from spherefed.data.catalog import check_dataset
from spherefed.data.idx import find_fashion_mnist
from spherefed.data.sources import load

FOLDER = Path(os.environ.get("SPHEREFED_TEST_DATA") or "/nonexistent")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data root of our own that links to the files: the folder may be read-only."""
    if not FOLDER.is_dir():
        pytest.skip("SPHEREFED_TEST_DATA names no folder with the official archives")
    place = tmp_path_factory.mktemp("real")
    for path in FOLDER.iterdir():
        (place / path.name).symlink_to(path)
    return place


def present(root: Path, *names: str) -> None:
    if not any((root / name).exists() for name in names):
        pytest.skip(f"{' or '.join(names)} is not in SPHEREFED_TEST_DATA")


def test_cifar100_has_its_published_counts_and_statistics(root):
    present(root, "cifar-100-python.tar.gz", "cifar-100-python.tar.xz")
    found = check_dataset("cifar100", root)
    assert (found.num_train, found.num_test, len(found.classes)) == (50_000, 10_000, 100)
    assert set(found.train_counts) == {500}
    assert set(found.test_counts) == {100}
    assert tuple(round(mean, 4) for mean in found.mean) == (0.5071, 0.4865, 0.4409)
    assert tuple(round(std, 4) for std in found.std) == (0.2673, 0.2564, 0.2762)
    assert found.official


def test_cifar100_second_load_is_quick_and_augmented_batches_come_out(root):
    present(root, "cifar-100-python.tar.gz", "cifar-100-python.tar.xz")
    load("cifar100", root)
    start = time.perf_counter()
    dataset = load("cifar100", root)
    assert time.perf_counter() - start < 1.0
    prepared, _ = next(dataset.train.in_order(50_000, device=torch.device("cpu")))
    assert prepared.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    assert (prepared.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-3


WORKER = """
import sys, torch
from spherefed.data.sources import load

def private_kilobytes():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))

load("digits")
before = private_kilobytes()
dataset = load("cifar100", sys.argv[1])
# Every page is read; max, unlike sum, makes no temporary copy in wider integers that would be counted here.
brightest = max(int(part.max()) for part in dataset.train.inputs.split(512))
print(private_kilobytes() - before, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_a_further_process_shares_the_pixels_of_cifar100(root):
    present(root, "cifar-100-python.tar.gz", "cifar-100-python.tar.xz")
    dataset = load("cifar100", root)
    assert int(dataset.train.inputs.max()) == 255  # this process holds every page, too
    command = [sys.executable, "-c", WORKER, str(root)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout is not None
        growth = int(worker.stdout.readline())
        worker.communicate("\n")
    print(f"private memory of a further process: {growth / 1024:.1f} MB")
    assert growth < 50 * 1024


def test_tiny_imagenet_has_its_classes_and_greyscale_images(root):
    present(root, "tiny-imagenet-200.zip", "tiny-imagenet-200")
    found = check_dataset("tiny-imagenet", root)
    assert (len(found.classes), found.num_test) == (200, 10_000)
    assert set(found.test_counts) == {50}
    assert found.num_train == (100_000 if found.official else int(found.provenance["train"]))
    images = load("tiny-imagenet", root).test.inputs
    grey = ((images[:, 0] == images[:, 1]) & (images[:, 1] == images[:, 2])).flatten(1).all(dim=1)
    assert 0.01 < float(grey.float().mean()) < 0.03


def test_fashion_mnist_is_the_official_one(root):
    if find_fashion_mnist(root) is None:
        pytest.skip("Fashion-MNIST is neither in SPHEREFED_TEST_DATA nor installed as a Debian package")
    found = check_dataset("fashion-mnist", root)
    assert (found.num_train, found.num_test) == (60_000, 10_000)
    assert found.official
    assert found.mean[0] == pytest.approx(0.2860, abs=6e-5)
    assert found.std[0] == pytest.approx(0.3530, abs=6e-5)
