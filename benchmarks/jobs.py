"""How much faster `compare --jobs 2` is than `--jobs 1` on the compute-bound workload, with equal weights.

python benchmarks/jobs.py [--seeds 4] [--rounds 10]

Wall time needs two free cores. CPU time does not: with as many seconds of work in each of two processes, two free
cores would take half of the CPU seconds of `--jobs 2`, start-up of the processes included.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from workloads import compute_bound

from spherefed.experiment import Experiment
from spherefed.runs.comparison import compare
from spherefed.runs.directory import RunDirectory
from spherefed.runs.runner import Engine

GOAL = 1.8


@dataclass(frozen=True, slots=True)
class Timing:
    wall: float
    cpu: float
    """Of this process and its children."""
    weights: tuple[str, ...]
    """SHA-256 of each run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        experiment = replace(compute_bound(Path(folder)).experiment, rounds=given.rounds)
        timings = {jobs: measure(experiment, given.seeds, jobs, Path(folder) / str(jobs)) for jobs in (1, 2)}
    one, two = timings[1], timings[2]
    if one.weights != two.weights:
        sys.exit("the runs side by side have other weights")
    print("| | wall s | CPU s |\n|---|---|---|")
    for jobs, timing in timings.items():
        print(f"| --jobs {jobs} | {timing.wall:.1f} | {timing.cpu:.1f} |")
    print(
        f"{len(one.weights)} runs with equal SHA-256, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(f"faster by wall time: {one.wall / two.wall:.2f}; by CPU time on two free cores: {2 * one.cpu / two.cpu:.2f}")
    print(f"goal: {GOAL}")


def measure(experiment: Experiment, seeds: int, jobs: int, out: Path) -> Timing:
    """The time of a comparison of one method over some seeds."""
    cpu, began = _cpu(), time.perf_counter()
    for _ in compare({"fedavg": experiment}, seeds, out, engine=Engine(), jobs=jobs):
        pass
    wall, used = time.perf_counter() - began, _cpu() - cpu
    runs = sorted(out.glob("*/seed-*"))
    return Timing(wall, used, tuple(RunDirectory(run).result()["weights_sha256"] for run in runs))


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
