"""What follows the rounds: re-estimate running statistics, calibrate, evaluate before and after, write the result.

The result also has diagnostics for its report: answers by true class (C² numbers) and the eigenvalues of V (l numbers).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spherefed.assembly import Assembly
from spherefed.calibration import Calibration
from spherefed.calibration.ffc import Statistics
from spherefed.client.evaluation import (
    GLOBAL_TEST,
    LOCAL_TEST_BY_SAMPLES,
    PERSONAL_TEST_BY_SAMPLES,
    counts_of,
    global_confusion,
    local_accuracies,
    measures,
    pooled_counts,
    spread_over_clients,
)
from spherefed.client.personalization import BlendedFfc
from spherefed.files import tensors_to_bytes
from spherefed.messages import LEARNED_HEAD, ModelState, Traffic
from spherefed.nn.prototypes import coherence
from spherefed.runs.directory import START, RunDirectory, read_json
from spherefed.runs.head import keep_statistics, write_client_statistics
from spherefed.runs.round_log import ROUNDS, RoundLog, read_lines
from spherefed.schema import kind_of
from spherefed.server.collection import Calibrated, LocalCounts, calibrate, evaluate_on_clients, reestimate
from spherefed.server.federation import Fleet
from spherefed.server.reply_checks import ReplyLimits
from spherefed.tensors import Tensors, add_prefix, digest, one_thread

DIAGNOSTICS = "diagnostics.safetensors"
CONFUSION, SPECTRUM = "confusion", "spectrum"
MAX_SPECTRUM = 2048
"""Largest feature dimension whose spectrum is computed: the time grows with its cube, and takes seconds here."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """Bytes and seconds of the stages of a run."""

    num_clients: int
    """Traffic is a mean over all of them, those that were never asked included."""
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sent to all clients and received from them."""

    def add(self, stage: str, traffic: Traffic, seconds: float | None = None) -> None:
        down, up = self.bytes.get(stage, (0, 0))
        self.bytes[stage] = down + sum(traffic.down.values()), up + sum(traffic.up.values())
        if seconds is not None:
            self.seconds[stage] = seconds


def finish_run(
    assembly: Assembly,
    fleet: Fleet,
    directory: RunDirectory,
    log: RoundLog,
    model: ModelState,
    keep_client_statistics: bool = False,
) -> None:
    """Finish a run whose rounds are over: its last step is `result.json`."""
    experiment, calibrated = assembly.experiment, None
    limits = experiment.limits.of_measuring(log.claims())
    start = read_json(directory.path / START) if (directory.path / START).exists() else None
    costs = _costs_of_rounds(read_lines(directory.path / ROUNDS), start, len(fleet.clients))
    if experiment.model.batch_statistics == "reestimate":
        model = _reestimated(assembly, fleet, log, model, limits, costs)
    evaluated = {"trained": evaluate(assembly, fleet, log, model)}
    if experiment.calibration is not None:
        began, context = time.perf_counter(), assembly.context(model, experiment.rounds)
        keep = partial(write_client_statistics, directory.path, experiment.digest()) if keep_client_statistics else None
        calibrated = calibrate(
            experiment.calibration, fleet, model, context, quorum=experiment.quorum, limits=limits, keep=keep
        )
        costs.add("calibrate", calibrated.traffic, time.perf_counter() - began)
        log.append_rejections(calibrated.rejected)
        keep_statistics(assembly, calibrated, directory.path)
        evaluated["calibrated"] = evaluate(assembly, fleet, log, calibrated.model)
    final, total = (model, {}) if calibrated is None else (calibrated.model, calibrated.total)
    personal = _personal(assembly, fleet, log, model, total, costs) if experiment.data.held_out else None
    if personal is not None:
        evaluated["trained"].add_local(personal, personal=True)
    confusion = {stage: found.confusion[0] for stage, found in evaluated.items() if found.confusion}
    diagnostics = diagnostics_files(confusion, total)
    result = _result(assembly, model, calibrated, evaluated, personal, costs, start)
    digests = {
        "weights_sha256": final.digest(),
        "frozen_sha256": assembly.local_model.frozen_digest() or None,
        "statistics_sha256": digest(total) if total else None,
    }
    directory.finish(final, result | digests, diagnostics)


def _costs_of_rounds(lines: list[dict[str, Any]], start: dict[str, Any] | None, num_clients: int) -> _Costs:
    """Of what is over when a run is finished: the rounds, calibrations between them, and a start before round 0."""
    costs = _Costs(num_clients, {"train": sum(line["seconds"] for line in lines)})
    costs.add("train", Traffic())
    for line in lines:
        costs.add("train", Traffic(line["bytes_down"], line["bytes_up"]))
        if between := line.get("calibrated"):
            costs.add("calibrate", Traffic(between["bytes_down"], between["bytes_up"]))
    if start is not None:
        costs.add("start", Traffic(start["bytes_down"], start["bytes_up"]), start["seconds"])
    return costs


def _reestimated(
    assembly: Assembly, fleet: Fleet, log: RoundLog, model: ModelState, limits: ReplyLimits, costs: _Costs
) -> ModelState:
    """The model with running statistics that all clients have measured on it."""
    began, experiment = time.perf_counter(), assembly.experiment
    reestimated = reestimate(fleet, model, experiment.rounds, quorum=experiment.quorum, limits=limits)
    costs.add("reestimate", reestimated.traffic, time.perf_counter() - began)
    log.append_rejections(reestimated.rejected)
    return reestimated.model


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one model reaches: the accuracy and the other measures on each test."""

    accuracy: dict[str, float] = field(default_factory=dict)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    confusion: list[Tensor] = field(default_factory=list)
    """Test examples by true class and answer, if there is a test set."""
    clients: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Correct answers and held-out examples of each client that answered the evaluation."""

    def add_local(self, local: LocalCounts, *, personal: bool = False) -> None:
        """On the clients' own held-out examples; counts of classes are summed over clients."""
        self.accuracy.update(local_accuracies(local.counts, personal=personal))
        self.clients.update((k, (c.correct, c.total)) for k, c in zip(local.clients, local.counts, strict=True))
        if (counts := pooled_counts(local.counts)) is not None:
            self.measures[PERSONAL_TEST_BY_SAMPLES if personal else LOCAL_TEST_BY_SAMPLES] = measures(counts)


def evaluate(assembly: Assembly, fleet: Fleet, log: RoundLog, model: ModelState) -> Evaluation:
    """On the test set, and on the held-out examples of clients if they have any."""
    found = Evaluation()
    confusion = global_confusion(assembly.local_model, model, assembly.test)
    if confusion is not None:
        on_test = counts_of(confusion)
        found.confusion.append(confusion)
        found.accuracy[GLOBAL_TEST] = on_test.accuracy
        found.measures[GLOBAL_TEST] = measures(on_test)
    if assembly.experiment.data.held_out and not assembly.local_model.private:
        found.add_local(_evaluate_on_clients(assembly, fleet, log, model))
    return found


def _evaluate_on_clients(
    assembly: Assembly,
    fleet: Fleet,
    log: RoundLog,
    model: ModelState,
    *,
    personalize: bool = False,
    extra: Tensors | None = None,
) -> LocalCounts:
    """What clients count on their held-out examples; rejected replies are recorded."""
    experiment = assembly.experiment
    local = evaluate_on_clients(
        fleet,
        model,
        experiment.rounds,
        personalize=personalize,
        extra=extra,
        num_classes=assembly.dataset.num_classes,
        quorum=experiment.quorum,
        limits=experiment.limits.of_measuring({}),
    )
    log.append_rejections(local.rejected)
    return local


def _personal(
    assembly: Assembly, fleet: Fleet, log: RoundLog, trained: ModelState, total: Tensors, costs: _Costs
) -> LocalCounts | None:
    """Every client's own model, personalised or kept since training, on that client's held-out examples."""
    personal = assembly.experiment.personalization
    if personal is None and not assembly.local_model.private:
        return None
    extra = total if isinstance(personal, BlendedFfc) else {}
    found = _evaluate_on_clients(assembly, fleet, log, trained, personalize=personal is not None, extra=extra)
    costs.add("personalize", found.traffic)
    return found


def diagnostics_files(confusion: Mapping[str, Tensor], total: Tensors) -> dict[str, bytes]:
    """The file to write, by its name; nothing if there is nothing to say.

    `confusion` has the test examples by true class (row) and answer (column) of each stage; `total` are the summed
    statistics of the calibration.
    """
    tensors = add_prefix(CONFUSION, {stage: counts.to(torch.int32) for stage, counts in confusion.items()})
    spectrum = spectrum_of(total)
    if spectrum is not None:
        tensors[SPECTRUM] = spectrum
    return {DIAGNOSTICS: tensors_to_bytes(tensors, {})} if tensors else {}


def spectrum_of(total: Tensors) -> Tensor | None:
    """The eigenvalues of V, ascending, (l,) float64; None if these are not FFC's statistics, or if l is large."""
    if total.keys() != {"counts", "gram", "cross"} or len(total["cross"]) > MAX_SPECTRUM:
        return None
    with one_thread():
        values: Tensor = torch.linalg.eigvalsh(Statistics.from_checked_tensors(total).gram())
        return values.cpu()


def _result(
    assembly: Assembly,
    trained: ModelState,
    calibrated: Calibrated | None,
    evaluated: Mapping[str, Evaluation],
    personal: LocalCounts | None,
    costs: _Costs,
    start: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What `result.json` says, apart from digests; evaluations are by the stage of the model."""
    num_clients, summary = costs.num_clients, None
    calibration, head = assembly.experiment.calibration, assembly.local_model.head_of(trained)
    if calibration is not None and calibrated is not None:
        left_out = {line.client for line in calibrated.rejected}
        summed = summary_of_sums(calibration, calibrated.total, len(calibrated.clients), left_out)
        summary = {**calibrated.summary, "summed": summed}
    # Coherence compares the rows of a head that all clients share.
    shared = LEARNED_HEAD not in assembly.local_model.private and len(head) > 1
    return {
        "rounds": assembly.experiment.rounds,
        "accuracy": {stage: found.accuracy for stage, found in evaluated.items()},
        "measures": {stage: found.measures for stage, found in evaluated.items()},
        "evaluated": {stage: found.clients for stage, found in evaluated.items()},
        "calibration": summary,
        "head": {
            "kind": kind_of(assembly.experiment.model.head),
            "coherence": coherence(head) if shared else None,
            **({} if start is None else {"start": start["summary"]}),
        },
        "personal": None if personal is None else spread_over_clients(personal.clients, personal.counts),
        "traffic": {
            stage: {"down": down / num_clients, "up": up / num_clients} for stage, (down, up) in costs.bytes.items()
        },
        "seconds": costs.seconds,
    }


def summary_of_sums(calibration: Calibration, total: Tensors, num_clients: int, left_out: set[int]) -> dict[str, Any]:
    """What the head was computed from; `rejections.jsonl` says why clients were left out."""
    summed: dict[str, Any] = {"clients": num_clients, "left_out": sorted(left_out)}
    if {"counts", "gram", "cross"} <= total.keys():  # FFC: a zero feature vector has no direction and is not counted
        examples, zero_vectors = total["counts"].tolist()
        return {**summed, "examples": examples, "zero_vectors": zero_vectors}
    count: Callable[[Tensors], int] | None = getattr(calibration, "num_examples", None)
    return summed if count is None else {**summed, "examples": count(total)}
