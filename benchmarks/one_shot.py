"""One-shot federated learning on all of CIFAR-100: accuracy, bytes, memory and time of every head, in processes.

python benchmarks/one_shot.py --data-root DIR           prints the table
python benchmarks/one_shot.py --data-root DIR --write   also writes it into docs/one-shot.md

Needs spherefed[pretrained]. The first run computes the features of 60,000 images; later ones read the cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sections import write_section

FOURIER = ("model.feature_map.kind=fourier", "model.feature_map.dim=4096")
HEADS: dict[str, tuple[str, ...]] = {
    "`ffc`, λ = 0.1": ("calibration.kind=ffc", "calibration.ridge=0.1"),
    "`ffc-gcv`": (),
    "`ffc-balanced`": ("calibration.kind=ffc-balanced",),
    "`lda`": ("calibration.kind=lda",),
    "`ncm`": ("calibration.kind=ncm",),
    "`fedcof`": ("calibration.kind=fedcof",),
    "4,096 random Fourier features, `ffc`, λ = 0.1": (*FOURIER, "calibration.kind=ffc", "calibration.ridge=0.1"),
    "4,096 random Fourier features, `ffc-gcv`": FOURIER,
}


@dataclass(frozen=True)
class Row:
    """One process that ran one experiment from the cache."""

    accuracy: float
    bytes_up: float
    seconds: float
    cpu_seconds: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--only", default="", help="Only heads whose name contains this text.")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = {}
    for name, settings in HEADS.items():
        if given.only in name:
            rows[name] = measure((f"partition.clients={given.clients}", *settings), given.data_root)
            print(name, rows[name], file=sys.stderr)
    text = table(rows)
    print(text)
    if given.write:
        write_section("one-shot.md", "cifar100", text)


def measure(settings: tuple[str, ...], data_root: str) -> Row:
    """Run the recipe with α = 0.1 on all 50,000 images, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spherefed", "run", "cifar100-one-shot", "--json", "--data-root", data_root]
        command += ["--out", f"{folder}/run"]
        for setting in ("min_samples=1", *settings):
            command += ["--set", setting]
        began = time.perf_counter()
        with open(f"{folder}/output", "wb") as output:  # noqa: PTH123 - a file descriptor for the child
            process = subprocess.Popen(command, stdout=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
            _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        result = json.loads(Path(folder, "output").read_text(encoding="utf-8"))
    (accuracy,) = result["accuracy"]["calibrated"].values()
    return Row(
        accuracy=accuracy,
        bytes_up=result["traffic"]["calibrate"]["up"],
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss / 1024,
    )


def table(rows: dict[str, Row]) -> str:
    lines = [
        "| head | accuracy | MB sent per client | peak memory, MiB | seconds | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {100 * row.accuracy:.1f} | {row.bytes_up / 1e6:.2f} | {row.peak_mb:.0f} | {row.seconds:.0f} | "
        f"{row.cpu_seconds:.0f} |"
        for name, row in rows.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
