"""Add a client to the head of a finished run, or forget one: its statistics are added or subtracted exactly.

The run keeps the summed statistics and which clients are in them (`statistics.safetensors`). The statistics of single
clients are kept only on request (`client_statistics/`); otherwise the client is asked again. Only the head forgets; an
encoder that was trained on the client's data still remembers them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from spherefed.assembly import Assembly, assemble
from spherefed.calibration import BalancedFfc, Calibration, Ffc, FfcGcv, Lda, Ncm
from spherefed.client.evaluation import GLOBAL_TEST, global_accuracy
from spherefed.client.handle import answer_group
from spherefed.errors import ConfigError, RunError
from spherefed.experiment import read_experiment
from spherefed.files import parse_json, read_tensors, tensors_to_bytes, write_bytes, write_tensors
from spherefed.messages import Failure, Measure, MeasureReply, ModelState
from spherefed.runs.directory import RunDirectory
from spherefed.schema import kind_of
from spherefed.server.collection import Calibrated
from spherefed.tensors import Tensors, digest

STATISTICS, CLIENT_STATISTICS = "statistics.safetensors", "client_statistics"
ADDITIVE_KINDS = "ffc, ffc-gcv, ffc-balanced, lda or ncm"
Action = Literal["add", "forget"]


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
    if _is_additive(assembly.experiment.calibration):
        rejected = {line.client for line in calibrated.rejected}
        clients = tuple(k for k in range(len(assembly.partition.parts)) if k not in rejected)
        write_bytes(run / STATISTICS, HeadStatistics(calibrated.total, clients).to_bytes())
        for client in rejected:  # after its statistics were written
            client_statistics(run, client).unlink(missing_ok=True)


def write_client_statistics(run: Path, client: int, moments: Tensors) -> None:
    """Store the statistics of one client."""
    path = client_statistics(run, client)
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, moments, {"digest": digest(moments)})


def client_statistics(run: Path, client: int) -> Path:
    """Where the statistics of one client are, if the run keeps them."""
    return run / CLIENT_STATISTICS / f"{client}.safetensors"


def check_additive(calibration: Calibration | None) -> None:
    """Refuse to keep statistics that cannot be added and subtracted exactly."""
    if not _is_additive(calibration):
        kind = "none" if calibration is None else kind_of(calibration)
        raise ConfigError(
            f"keep_client_statistics needs statistics that can be added exactly, got calibration {kind!r}; "
            f"use {ADDITIVE_KINDS}"
        )


def change_head(run: Path, client: int, action: Action, *, data_root: str | None = None) -> dict[str, Any]:
    """Solve the head of a finished run again, with or without this client; returns what the run records."""
    directory = RunDirectory(run)
    result, experiment, model = directory.result(), read_experiment(run), directory.model()
    if not (run / STATISTICS).exists() or not _is_additive(experiment.calibration):
        kind = "none" if experiment.calibration is None else kind_of(experiment.calibration)
        raise RunError(
            f"{run} keeps no statistics that can be added exactly (calibration {kind!r}): use {ADDITIVE_KINDS}"
        )
    assert experiment.calibration is not None
    with directory.locked():
        directory.check_whole()
        kept = _read(run)
        _check_change(kept, client, action, experiment.partition.clients)
        assembly = assemble(experiment, data_root=data_root)
        changed = _change(run, assembly, experiment.calibration, model, kept, client, action)
        solved = experiment.calibration.solve(changed.total, assembly.context(model, experiment.rounds))
        new_model = model.with_head(solved.weight.to(assembly.local_model.dtype))
        accuracy = global_accuracy(assembly.local_model, new_model, assembly.test)
        record: dict[str, Any] = {"action": action, "client": client, "weights_sha256": new_model.digest()}
        record |= {} if accuracy is None else {"accuracy": {GLOBAL_TEST: accuracy}}
        changes = (*kept.changes, record)
        digests = {"weights_sha256": new_model.digest(), "statistics_sha256": digest(changed.total)}
        # The statistics come last: killed before that, the run is as before and the change can be made again.
        statistics = HeadStatistics(changed.total, changed.clients, changes).to_bytes()
        new_result = {**result, **digests, "head_changes": list(changes)}
        directory.finish(new_model, new_result, {STATISTICS: statistics})
        if action == "forget":
            client_statistics(run, client).unlink(missing_ok=True)
    return record


def _change(
    run: Path,
    assembly: Assembly,
    calibration: Calibration,
    model: ModelState,
    kept: HeadStatistics,
    client: int,
    action: Action,
) -> HeadStatistics:
    stored = client_statistics(run, client)
    moments = _read_client(stored) if stored.exists() else _ask(assembly, model, client)
    if action == "add" and stored.parent.is_dir():
        write_client_statistics(run, client, moments)
    part = calibration.merge(None, moments, assembly.context(model, assembly.experiment.rounds))
    sign = 1 if action == "add" else -1
    total = {name: tensor + sign * part[name] for name, tensor in kept.total.items()}
    clients = {*kept.clients, client} if action == "add" else {*kept.clients} - {client}
    return HeadStatistics(total, tuple(sorted(clients)))


def _read_client(path: Path) -> Tensors:
    moments, metadata = read_tensors(path)
    if metadata.get("digest") != digest(moments):
        raise RunError(f"{path} is damaged: delete it, and the client is asked again")
    return moments


def _ask(assembly: Assembly, model: ModelState, client: int) -> Tensors:
    """The statistics of this client, measured again."""
    request = Measure(assembly.experiment.rounds, model)
    (reply,) = answer_group(assembly.clients, [client], request, None, stacked=False)
    if isinstance(reply, Failure):
        raise RunError(f"client {client} gave no statistics: {reply.cause}")
    assert isinstance(reply, MeasureReply)
    return reply.moments


def _check_change(kept: HeadStatistics, client: int, action: Action, num_clients: int) -> None:
    if not 0 <= client < num_clients:
        raise RunError(f"the run has clients 0 to {num_clients - 1}, not {client}")
    if action == "add" and client in kept.clients:
        raise RunError(f"client {client} is in the head already")
    if action == "forget" and client not in kept.clients:
        raise RunError(f"client {client} is not in the head")


def _is_additive(calibration: Calibration | None) -> bool:
    """Whether the sums are exact integers, one element of the total for each element of a part."""
    return isinstance(calibration, Ffc | FfcGcv | BalancedFfc | Lda | Ncm)


def _read(run: Path) -> HeadStatistics:
    tensors, metadata = read_tensors(run / STATISTICS)
    try:
        clients, changes = parse_json(metadata["clients"]), parse_json(metadata["changes"])
    except (KeyError, ValueError) as error:
        raise RunError(f"{run / STATISTICS} is damaged: {error}") from error
    if any(tensor.dtype != torch.int64 for tensor in tensors.values()) or not isinstance(clients, list):
        raise RunError(f"{run / STATISTICS} is damaged: statistics must be int64, and clients a list")
    return HeadStatistics(tensors, tuple(clients), tuple(changes))
