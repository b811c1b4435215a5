"""Run directories whose numbers are known, for the tests of reports."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from spherefed.schema import with_path

GLOBAL = "global_model/global_test"


FFC = {"kind": "ffc", "ridge": 0.0}


SPHERE = {"model.head.kind": "orthonormal", "model.normalize": True, "loss.kind": "mse", "calibration": FFC}


FEDAVG_TRAINED = [0.80, 0.82, 0.79, 0.85, 0.81]


FEDAVG_CALIBRATED = [0.84, 0.85, 0.85, 0.87, 0.86]


SPHERE_TRAINED = [0.83, 0.86, 0.81, 0.86, 0.88]


SPHERE_CALIBRATED = [0.90, 0.93, 0.88, 0.94, 0.91]


def experiment(seed: int = 0, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "digits",
        "seed": seed,
        "rounds": 4,
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 3, "min_size": 0},
        "model": {"encoder": {"kind": "mlp", "widths": [128, 64]}, "head": {"kind": "learned"}, "normalize": False},
        "loss": {"kind": "ce", "scale": 1.0},
        "algorithm": {
            "prox_mu": 0.0,
            "normalize_steps": False,
            "server": {"kind": "sgd", "lr": 1.0, "momentum": 0.0},
        },
        "local": {"epochs": 5, "batch_size": 32, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5},
        "schedule": {"kind": "cosine"},
        "calibration": None,
    }
    for path, value in changes.items():
        plain = with_path(plain, path, value)
    return plain


def write_run(
    path: Path,
    plain: Mapping[str, Any],
    trained: float,
    calibrated: float | None = None,
    *,
    digest: str | None = None,
    counts: Sequence[Sequence[int]] = ((5, 0), (0, 7), (3, 4)),
    rejections: Sequence[Mapping[str, Any]] = (),
    confusion: Mapping[str, Sequence[Sequence[int]]] | None = None,
    spectrum: Sequence[float] | None = None,
    changes: Mapping[str, Any] | None = None,
    finished: bool = True,
    sites: Sequence[str] = (),
    missing_since: Mapping[int, int] | None = None,
) -> Path:
    """A run of four rounds on three clients. `changes` replace values of `result.json`; an unfinished run has two
    rounds. `missing_since` says from which round on a client takes no part.
    """
    path.mkdir(parents=True)
    tested = (changes or {}).get("accuracy", {}).get("trained", {GLOBAL: trained})
    seed = plain["seed"]
    (path / "experiment.json").write_text(json.dumps(plain))
    machine = {
        "spherefed": "0.1.0",
        "python": "3.11.7",
        "commit": None,
        "seed": seed,
        "started": "2026-01-02T03:04:05Z",
        **({"sites": [{"client": k, "site": name} for k, name in enumerate(sites)]} if sites else {}),
    }
    (path / "environment.json").write_text(json.dumps(machine))
    tensors = {"label_counts": np.array(counts, dtype=np.int64), "indices": np.arange(3), "offsets": np.arange(4)}
    save_file(tensors, path / "partition.safetensors", metadata={"digest": digest or f"partition-of-seed-{seed}"})
    clients = range(len(counts))
    lines = []
    for t, accuracy in enumerate([{GLOBAL: trained / 2}, {}, {GLOBAL: trained * 0.9}, {GLOBAL: trained}]):
        taking_part = [k for k in clients if t < (missing_since or {}).get(k, 99)]
        lines.append(
            {
                "round": t, "lr": 0.1, "loss": 2.0 / (t + 1), "clients": taking_part, "seconds": 0.5,
                "examples": [sum(counts[k]) for k in taking_part], "accuracy": accuracy if GLOBAL in tested else {},
                "bytes_down": {str(k): 400 for k in taking_part}, "bytes_up": {str(k): 200 for k in taking_part},
                "consistency": {"cosine": 0.5 + t / 10, "norm_difference": 0.4 - t / 10},
            }
        )  # fmt: skip
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[: 4 if finished else 2]))
    if rejections:
        (path / "rejections.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rejections))
    accuracy = {"trained": {GLOBAL: trained, "global_model/local_test/by_clients": trained - 0.01}}
    if calibrated is not None:
        accuracy["calibrated"] = {GLOBAL: calibrated, "global_model/local_test/by_clients": calibrated - 0.02}
    result = {
        "rounds": 4,
        "accuracy": accuracy,
        "calibration": None if calibrated is None else {"path": "cholesky", "rcond": 1e-5, "rank": 64, "dropped": 0},
        "traffic": {"train": {"down": 2_000_000, "up": 1_000_000 + seed}, "calibrate": {"down": 500, "up": 30_000}},
        "seconds": {"train": 2.0, "calibrate": 0.5},
        "weights_sha256": f"{seed:064x}",
    }
    if finished:
        (path / "result.json").write_text(json.dumps(result | dict(changes or {})))
    tensors = {f"confusion.{stage}": np.array(matrix, dtype=np.int32) for stage, matrix in (confusion or {}).items()}
    if spectrum is not None:
        tensors["spectrum"] = np.array(spectrum, dtype=np.float64)
    if tensors:
        save_file(tensors, path / "diagnostics.safetensors")
    return path


PERSONAL = "personal_model/local_test/by_clients"


def write_personal_run(path: Path, plain: Mapping[str, Any], accuracies: Sequence[float]) -> Path:
    """A run whose clients have personal models, without a test set."""
    mean, std = float(np.mean(accuracies)), float(np.std(accuracies))
    changes = {
        "accuracy": {"trained": {"global_model/local_test/by_clients": mean - 0.1, PERSONAL: mean}},
        "personal": {"mean": mean, "std": std, "clients": {str(k): value for k, value in enumerate(accuracies)}},
    }
    return write_run(path, plain, mean, changes=changes)


def by_hand(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width for five values, with t(0.975, 4) from a printed table."""
    assert len(values) == 5
    return float(np.mean(values)), 2.776445 * float(np.std(values, ddof=1)) / math.sqrt(5)
