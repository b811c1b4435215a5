"""Freed memory stays with a process that trains, and is given back by one that only did so for a while."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.name != "posix" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is left as it is"
)

STEPS = """
import resource, torch
def steps(number):
    "So often what a step does: some large tensors, one of 64 MiB, all of them freed again."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(number):
        tensors = [torch.ones(1 << power) for power in (24, 21, 19, 20)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
"""


def told(program: str, **environment: str) -> int:
    """The number that a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS + program],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


KEEPING = (
    "from spherefed.acceleration.memory_reuse import keep_freed_memory; "
    "keep_freed_memory(); steps(10); print(steps(20))"
)


@pytest.mark.slow
def test_steps_find_the_memory_of_the_steps_before() -> None:
    with_care, without = told(KEEPING), told("steps(10); print(steps(20))")
    assert 10 * with_care + 100 < without


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_whoever_says_how_memory_is_to_be_handled_is_heard(name: str) -> None:
    assert told(KEEPING, **{name: "131072"}) > 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_what_was_kept_for_a_run_is_given_back() -> None:
    program = """
from spherefed.acceleration.memory_reuse import freed_memory_kept
with freed_memory_kept():
    steps(2)
    kept = resident()
print(kept - resident())
"""
    assert told(program) > 50 << 20


@pytest.mark.slow
def test_memory_can_be_kept_again_and_again() -> None:
    program = """
from spherefed.acceleration.memory_reuse import freed_memory_kept
faults = []
for _ in range(3):
    with freed_memory_kept():
        steps(10)
        faults.append(steps(20))
print(max(faults))
"""
    assert told(program) < 100
