"""One-shot federated learning on all of CIFAR-100: accuracy, bytes, memory and time of every head, in processes.

python benchmarks/one_shot.py --data-root DIR           prints the table
python benchmarks/one_shot.py --data-root DIR --write   also writes it into docs/one-shot.md

The λ of the rows of `ffc` is the best one on 5,000 of the training images, with a head from the other 45,000. The rows
that were measured are kept in a file (--rows), so that the table can be made in several calls. Needs
spherefed[pretrained]. The first run computes the features of 60,000 images; later ones read the cache.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sections import write_section

from spherefed.assembly import assemble
from spherefed.calibration.ffc import statistics
from spherefed.client.evaluation import BATCH_SIZE, global_accuracy
from spherefed.experiment import with_settings
from spherefed.recipes.experiments import cifar100_one_shot

FOURIER = ("model.feature_map.kind=fourier", "model.feature_map.dim=4096")
HEADS: dict[str, tuple[str, ...]] = {
    "`ffc`": ("calibration.kind=ffc",),
    "`ffc-gcv`": (),
    "`ffc-balanced`": ("calibration.kind=ffc-balanced",),
    "`lda`": ("calibration.kind=lda",),
    "`ncm`": ("calibration.kind=ncm",),
    "`fedcof`": ("calibration.kind=fedcof",),
    "4,096 random Fourier features, `ffc`": (*FOURIER, "calibration.kind=ffc"),
    "4,096 random Fourier features, `ffc-gcv`": FOURIER,
}
RIDGES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
VALIDATION = 0.1
"""Part of the training images that λ is chosen on."""


@dataclass(frozen=True)
class Row:
    """One process that ran one experiment from the cache."""

    accuracy: float
    bytes_up: float
    seconds: float
    cpu_seconds: float
    peak_mb: float
    ridge: float | None
    """λ, if the calibration has one."""
    chosen_from: dict[str, float]
    """Accuracy on the validation images for each λ, if it was chosen like that."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--only", default="", help="Only the head of this name, or those whose name contains it.")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=Path, default=Path("one-shot-rows.json"), help="Rows that were measured before.")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = json.loads(given.rows.read_text(encoding="utf-8")) if given.rows.exists() else {}
    for name, settings in HEADS.items():
        wanted = name == given.only if given.only in HEADS else given.only in name
        if wanted and name not in rows:
            clients = f"partition.clients={given.clients}"
            rows[name] = asdict(measure((clients, *settings), given.data_root))
            print(name, rows[name], file=sys.stderr, flush=True)
            given.rows.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    text = table({name: Row(**rows[name]) for name in HEADS if name in rows})
    print(text)
    if given.write:
        write_section("one-shot.md", "cifar100", text)


def measure(settings: tuple[str, ...], data_root: str) -> Row:
    """Run the recipe with α = 0.1 on all 50,000 images, in a process of its own."""
    accuracies = {}
    if "calibration.kind=ffc" in settings:
        # In a process of its own: a child's peak memory is at least that of the process that starts it.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            accuracies = pool.apply(validated, (settings, data_root))
    if accuracies:
        settings = (*settings, f"calibration.ridge={max(accuracies, key=lambda ridge: accuracies[ridge])}")
    result, seconds, usage = run(("min_samples=1", *settings), data_root)
    (accuracy,) = result["accuracy"]["calibrated"].values()
    return Row(
        accuracy=accuracy,
        bytes_up=result["traffic"]["calibrate"]["up"],
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
        ridge=result["calibration"].get("ridge"),
        chosen_from={f"{ridge:g}": value for ridge, value in accuracies.items()},
    )


def validated(settings: tuple[str, ...], data_root: str) -> dict[float, float]:
    """The accuracy of each λ on images that the head was not solved from; one client gives the sums of a hundred."""
    split = ["min_samples=1", *settings, "partition.clients=1", f"data.validation={VALIDATION}"]
    assembly = assemble(with_settings(cifar100_one_shot(), split), data_root=data_root)
    model, local_model = assembly.initial(), assembly.local_model
    examples = assembly.clients[0].examples.in_order(BATCH_SIZE, device=local_model.device)
    total = statistics(local_model.classifier, examples)
    accuracies = {}
    for ridge in RIDGES:
        head = total.solve(ridge).weight.to(local_model.dtype)
        accuracies[ridge] = global_accuracy(local_model, model.with_head(head), assembly.test) or 0.0
        print(f"λ = {ridge:g}: {accuracies[ridge]:.4f} on {len(assembly.test)} images", file=sys.stderr, flush=True)
    return accuracies


def run(settings: tuple[str, ...], data_root: str) -> tuple[dict[str, Any], float, "resource.struct_rusage"]:
    """The result of a process, its seconds, and what it used."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spherefed", "run", "cifar100-one-shot", "--json", "--data-root", data_root]
        command += ["--out", f"{folder}/run"]
        for setting in settings:
            command += ["--set", setting]
        began = time.perf_counter()
        with open(f"{folder}/output", "wb") as output:  # noqa: PTH123 - a file descriptor for the child
            process = subprocess.Popen(command, stdout=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
            _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        return json.loads(Path(folder, "output").read_text(encoding="utf-8")), seconds, usage


def table(rows: dict[str, Row]) -> str:
    lines = [
        "| head | λ | accuracy | MB sent per client | peak memory, MB | seconds | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        ridge = "" if row.ridge is None else f"{row.ridge:.2g}"
        numbers = (f"{100 * row.accuracy:.1f}", f"{row.bytes_up / 1e6:.2f}", f"{row.peak_mb:.0f}")
        times = (f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}")
        lines.append(f"| {' | '.join((name, ridge, *numbers, *times))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
