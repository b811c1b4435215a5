"""Add a client to the head of a finished run, or forget one: its statistics are added or subtracted exactly.

The client is asked for its statistics again, unless the run keeps them. Only the head forgets; an encoder that was
trained on the client's data still remembers them.
"""

from pathlib import Path
from typing import Any, Literal

from spherefed.assembly import Assembly, assemble
from spherefed.calibration import Calibration
from spherefed.client.handle import answer_group
from spherefed.engines.local import InProcess
from spherefed.errors import RunError
from spherefed.experiment import read_experiment
from spherefed.files import read_tensors
from spherefed.messages import Failure, Measure, MeasureReply, ModelState
from spherefed.runs.directory import RunDirectory
from spherefed.runs.finish import CONFUSION, DIAGNOSTICS, Evaluation, diagnostics_files, evaluate, summary_of_sums
from spherefed.runs.head import (
    ADDITIVE_KINDS,
    STATISTICS,
    HeadStatistics,
    client_statistics,
    is_additive,
    read_client_statistics,
    read_statistics,
    write_client_statistics,
)
from spherefed.schema import kind_of
from spherefed.tensors import Tensors, digest, strip_prefix

Action = Literal["add", "forget"]


def change_head(run: Path, client: int, action: Action, *, data_root: str | None = None) -> dict[str, Any]:
    """Solve the head of a finished run again, with or without this client; returns what the run records."""
    directory = RunDirectory(run)
    result, experiment, model = directory.result(), read_experiment(run), directory.model()
    if not (run / STATISTICS).exists() or not is_additive(experiment.calibration):
        kind = "none" if experiment.calibration is None else kind_of(experiment.calibration)
        raise RunError(
            f"{run} keeps no statistics that can be added exactly (calibration {kind!r}): use {ADDITIVE_KINDS}"
        )
    assert experiment.calibration is not None
    with directory.locked():
        directory.check_whole()
        kept = read_statistics(run)
        if action == "forget" and client not in kept.clients:
            client_statistics(run, client).unlink(missing_ok=True)  # left by a kill after the client was forgotten
        _check_change(kept, client, action, experiment.partition.clients)
        directory.check_components(experiment)
        assembly = assemble(experiment, data_root=data_root)
        frozen_digest = assembly.local_model.frozen_digest()
        directory.check_inputs(assembly.dataset.description(), assembly.partition, frozen_digest)
        changed = _change(run, assembly, experiment.calibration, model, kept, client, action)
        solved = experiment.calibration.solve(changed.total, assembly.context(model, experiment.rounds))
        new_model = model.with_head(solved.weight.to(assembly.local_model.dtype))
        fleet = InProcess(assembly.clients)
        fleet.clients = changed.clients  # a client that left is not asked for its held-out examples either
        found = evaluate(assembly, fleet, directory.round_log(experiment), new_model)
        record = {"action": action, "client": client, "weights_sha256": new_model.digest(), "accuracy": found.accuracy}
        changes = (*kept.changes, record)
        left_out = {*range(experiment.partition.clients)} - {*changed.clients}
        summed = summary_of_sums(experiment.calibration, changed.total, len(changed.clients), left_out)
        new_result = {
            **result,
            "accuracy": {**result["accuracy"], "calibrated": found.accuracy},
            "measures": {**result.get("measures", {}), "calibrated": found.measures},
            "evaluated": {**result.get("evaluated", {}), "calibrated": found.clients},
            "calibration": {**solved.summary(), "summed": summed},
            "weights_sha256": record["weights_sha256"],
            "statistics_sha256": digest(changed.total),
            "head_changes": list(changes),
            "before_head_changes": result.get("before_head_changes") or _before(result),
        }
        # The statistics come last: killed before that, the run is as before and the change can be made again.
        statistics = HeadStatistics(changed.total, changed.clients, changes).to_bytes()
        directory.finish(new_model, new_result, {**_diagnostics(run, found, changed.total), STATISTICS: statistics})
        if action == "forget":
            client_statistics(run, client).unlink(missing_ok=True)
    return record


def _before(result: dict[str, Any]) -> dict[str, Any]:
    """What the run itself reached, before its head was changed for the first time."""
    return {"accuracy": result["accuracy"]["calibrated"], "weights_sha256": result["weights_sha256"]}


def _diagnostics(run: Path, found: Evaluation, total: Tensors) -> dict[str, bytes]:
    """The diagnostics with the counts of the new head; those of the trained model stay."""
    kept = read_tensors(run / DIAGNOSTICS)[0] if (run / DIAGNOSTICS).exists() else {}
    confusion = strip_prefix(CONFUSION, kept)
    if found.confusion:
        confusion["calibrated"] = found.confusion[0]
    return diagnostics_files(confusion, total)


def _change(
    run: Path,
    assembly: Assembly,
    calibration: Calibration,
    model: ModelState,
    kept: HeadStatistics,
    client: int,
    action: Action,
) -> HeadStatistics:
    stored, experiment = client_statistics(run, client), assembly.experiment.digest()
    moments = read_client_statistics(run, experiment, client) if stored.exists() else _ask(assembly, model, client)
    if action == "add" and stored.parent.is_dir():
        write_client_statistics(run, experiment, client, moments)
    part = calibration.merge(None, moments, assembly.context(model, assembly.experiment.rounds))
    sign = 1 if action == "add" else -1
    total = {name: tensor + sign * part[name] for name, tensor in kept.total.items()}
    clients = {*kept.clients, client} if action == "add" else {*kept.clients} - {client}
    return HeadStatistics(total, tuple(sorted(clients)))


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
