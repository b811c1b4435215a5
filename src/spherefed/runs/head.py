"""The statistics that a head was solved from, in the directory of a run.

The run keeps the summed statistics and which clients are in them (`statistics.safetensors`). The statistics of single
clients are kept only on request (`client_statistics/`).
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spherefed.assembly import Assembly
from spherefed.calibration import BalancedFfc, Calibration, Ffc, FfcGcv, Lda, Ncm
from spherefed.errors import ConfigError, RunError
from spherefed.files import parse_json, read_tensors, tensors_to_bytes, write_bytes, write_tensors
from spherefed.schema import kind_of
from spherefed.server.collection import Calibrated
from spherefed.tensors import Tensors, digest

STATISTICS, CLIENT_STATISTICS = "statistics.safetensors", "client_statistics"
ADDITIVE_KINDS = "ffc, ffc-gcv, ffc-balanced, lda or ncm"


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """The sums that a head was solved from, whose they are, and what was changed since the run."""

    total: Tensors
    clients: tuple[int, ...]
    changes: tuple[dict[str, Any], ...] = ()

    def to_bytes(self) -> bytes:
        metadata = {"clients": json.dumps(self.clients), "changes": json.dumps(self.changes)}
        return tensors_to_bytes(self.total, metadata)


def keep_statistics(assembly: Assembly, calibrated: Calibrated, run: Path) -> None:
    """Store the sums of a calibration whose statistics can be added and subtracted exactly."""
    if is_additive(assembly.experiment.calibration):
        rejected = {line.client for line in calibrated.rejected}
        clients = tuple(k for k in range(len(assembly.partition.parts)) if k not in rejected)
        write_bytes(run / STATISTICS, HeadStatistics(calibrated.total, clients).to_bytes())
        for client in rejected:  # after its statistics were written
            client_statistics(run, client).unlink(missing_ok=True)


def write_client_statistics(run: Path, experiment: str, client: int, moments: Tensors) -> None:
    """Store the statistics of one client; `experiment` is the digest of the run's experiment."""
    path = client_statistics(run, client)
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, moments, {"digest": _digest(experiment, client, moments)})


def read_client_statistics(run: Path, experiment: str, client: int) -> Tensors:
    """The statistics of one client that the run keeps."""
    path = client_statistics(run, client)
    moments, metadata = read_tensors(path)
    # Earlier releases stored the digest of the tensors alone.
    if metadata.get("digest") not in (_digest(experiment, client, moments), digest(moments)):
        raise RunError(
            f"{path} is damaged, or the statistics of another client or run: delete it, and the client is asked again"
        )
    return moments


def _digest(experiment: str, client: int, moments: Tensors) -> str:
    """SHA-256 over the tensors and whose they are, so that a file cannot take the place of another one."""
    return hashlib.sha256(f"{experiment} {client} {digest(moments)}".encode()).hexdigest()


def client_statistics(run: Path, client: int) -> Path:
    """Where the statistics of one client are, if the run keeps them."""
    return run / CLIENT_STATISTICS / f"{client}.safetensors"


def check_additive(calibration: Calibration | None) -> None:
    """Refuse to keep statistics that cannot be added and subtracted exactly."""
    if not is_additive(calibration):
        kind = "none" if calibration is None else kind_of(calibration)
        raise ConfigError(
            f"keep_client_statistics needs statistics that can be added exactly, got calibration {kind!r}; "
            f"use {ADDITIVE_KINDS}"
        )


def is_additive(calibration: Calibration | None) -> bool:
    """Whether the sums are exact integers, one element of the total for each element of a part."""
    return isinstance(calibration, Ffc | FfcGcv | BalancedFfc | Lda | Ncm)


def read_statistics(run: Path) -> HeadStatistics:
    """The sums that the run keeps."""
    tensors, metadata = read_tensors(run / STATISTICS)
    try:
        clients, changes = parse_json(metadata["clients"]), parse_json(metadata["changes"])
    except (KeyError, ValueError) as error:
        raise RunError(f"{run / STATISTICS} is damaged: {error}") from error
    if any(tensor.dtype != torch.int64 for tensor in tensors.values()) or not isinstance(clients, list):
        raise RunError(f"{run / STATISTICS} is damaged: statistics must be int64, and clients a list")
    return HeadStatistics(tensors, tuple(clients), tuple(changes))
