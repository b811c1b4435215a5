"""Ratios to the bare loop, interleaved: every contestant lives in its own process and works when it is its turn.

python benchmarks/compare.py overhead "bare,default" --repetitions 5
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Turn:
    """One repetition: seconds per timed round."""

    cpu: float
    wall: float
    loss: float
    peak_mb: float


def compare(workload: str, names: list[str], repetitions: int) -> dict[str, list[Turn]]:
    """Every contestant's turns, taken one after the other, `repetitions` times over; a first turn is thrown away."""
    with tempfile.TemporaryDirectory(prefix="spherefed-bench-") as scratch:
        processes = {name: _start(workload, name, Path(scratch)) for name in names}
        try:
            turns: dict[str, list[Turn]] = {name: [] for name in names}
            for repetition in range(repetitions + 1):
                for name, process in processes.items():
                    turn = _ask(process)
                    if repetition:
                        turns[name].append(turn)
            return turns
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def _start(workload: str, name: str, scratch: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, workload, name, "--serve", str(scratch)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _ask(process: "subprocess.Popen[str]") -> Turn:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a contestant died")
    return Turn(**json.loads(line))


def serve(workload_name: str, name: str, scratch: Path) -> None:
    """A contestant's process: one turn for every line that is read."""
    import torch
    from contestants import contestant
    from workloads import compute_bound, overhead_bound

    torch.set_num_threads(1)
    workload = overhead_bound() if workload_name == "overhead" else compute_bound(scratch)
    runner = contestant(name, workload.experiment, scratch / f"{workload_name}-{name}")
    for _ in sys.stdin:
        rounds = runner.rounds()
        for _ in range(workload.warm_up):
            next(rounds)
        timed = workload.experiment.rounds - workload.warm_up
        cpu, wall = _tree_cpu(), time.perf_counter()
        for _ in range(timed):
            next(rounds)
        cpu, wall = (_tree_cpu() - cpu) / timed, (time.perf_counter() - wall) / timed
        for _ in rounds:
            pass
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(asdict(Turn(cpu, wall, runner.loss(), peak))), flush=True)


def _tree_cpu() -> float:
    """CPU seconds of this process and of its living children."""
    own = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for child in children:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        own += (int(fields[11]) + int(fields[12])) / ticks
    return own


def table(turns: dict[str, list[Turn]]) -> str:
    """Medians of the ratios to the first contestant, turn by turn, with their spread; loss as proof of the work."""
    first = next(iter(turns.values()))
    lines = [
        "| contestant | CPU, ratio | lowest to highest | wall, ratio | CPU ms per round | final loss | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, own in turns.items():
        cpu = sorted(mine.cpu / base.cpu for mine, base in zip(own, first, strict=True))
        wall = median(mine.wall / base.wall for mine, base in zip(own, first, strict=True))
        lines.append(
            f"| {name} | **{median(cpu):.2f}** | {cpu[0]:.2f} – {cpu[-1]:.2f} | {wall:.2f} "
            f"| {1e3 * median(t.cpu for t in own):.2f} | {own[-1].loss:.4f} | {max(t.peak_mb for t in own):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=["overhead", "compute"])
    parser.add_argument("contestants", help="comma-separated; the first is what the others are compared with")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.workload, given.contestants, given.serve)
        return
    turns = compare(given.workload, given.contestants.split(","), given.repetitions)
    print(table(turns))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
