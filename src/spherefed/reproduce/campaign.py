"""Run what items still need: trainings that several cells share once, then what follows each of them.

Run directories lie under the digest of their experiment, so that any item, interrupted or not, finds them again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.errors import CalibrationError, FederationError, RunError
from spherefed.experiment import Experiment
from spherefed.reproduce.alignment import compare_local_models
from spherefed.reproduce.head_time import head_seconds
from spherefed.reproduce.item import Item, Metric
from spherefed.reproduce.store import Record, Store, dataset_of_run, record_of_failure, record_of_run, short_digest
from spherefed.runs.directory import RunDirectory
from spherefed.runs.environment import NUMERICS_VERSION
from spherefed.runs.jobs import Job, JobEnd, JobRound, Watch, run_jobs
from spherefed.runs.local_only import is_trained_alone, local_only_accuracy
from spherefed.runs.runner import Engine
from spherefed.schema import kind_of


@dataclass(frozen=True, slots=True)
class Campaign:
    """The runs that are missing."""

    jobs: tuple[Job, ...]
    num_rounds: int
    """Rounds of all trainings that are not finished, also of clients alone."""
    aligned: frozenset[str]
    """Digests of the experiments whose local models are compared as well (Fig. 3)."""
    timed: tuple[Experiment, ...]
    """Experiments whose heads are made once more, to measure how long that takes (Table 10)."""


def plan_campaign(items: Sequence[Item], seeds: Sequence[int], store: Store, runs: Path) -> Campaign:
    """One job per missing training and one per missing cell, seed by seed; clients that train alone come last."""
    wanted = {e.digest(): e for item in items for e in item.experiments()}
    inspected, alone = _with_metric(items, "mixing"), _with_metric(items, "local_only")
    with_time = _with_metric(items, "head_seconds")
    aligned: set[str] = set()
    local_only: list[Job] = []
    timed: list[Experiment] = []
    jobs: dict[Path, Job] = {}
    num_rounds = 0
    for seed in seeds:
        for digest, experiment in ((d, e.with_seed(seed)) for d, e in wanted.items()):
            record = store.record(experiment, seed)
            if digest in alone and (record is None or "local_only" not in record):
                out, name = runs / f"{short_digest(experiment)}-alone", f"{_title(experiment)}, clients alone"
                local_only.append(Job(name=name, experiment=experiment, out=out, alone=True))
                num_rounds += experiment.rounds
            if digest in with_time and (record is None or not {"head_seconds", "error"} & set(record)):
                timed.append(experiment)
            if record is not None and not (digest in inspected and _lacks_comparison(record, seed)):
                continue
            if digest in inspected:
                aligned.add(experiment.digest())
            training = experiment.training_part()
            first = runs / short_digest(training)
            if first not in jobs:
                jobs[first] = Job(name=_title(training), experiment=training, out=first)
                num_rounds += 0 if RunDirectory(first).finished else training.rounds
            if experiment != training:
                out = runs / short_digest(experiment)
                jobs[out] = Job(name=_title(experiment), experiment=experiment, out=out, trained=first)
    return Campaign((*jobs.values(), *local_only), num_rounds, frozenset(aligned), tuple(timed))


def _lacks_comparison(record: Record, seed: int) -> bool:
    """Whether the local models of a training have to be compared; only the first seed has a map."""
    wanted = {"alignment", "mixing", *(["map"] if seed == 0 else [])}
    return "error" not in record and not wanted <= set(record)


def _with_metric(items: Sequence[Item], metric: Metric) -> set[str]:
    """Digests of the experiments that some cell measures by this."""
    cells = [cell for item in items for cell in item.cells if cell.metric == metric]
    return {cell.experiment.digest() for cell in cells if cell.experiment is not None}


def run_campaign(
    campaign: Campaign, store: Store, *, engine: Engine, processes: int = 1, watch: Watch | None = None
) -> Iterator[JobRound]:
    """Run the jobs, resuming what was begun; every finished one is recorded at once."""
    for event in run_jobs(campaign.jobs, engine=engine, processes=processes, resume=True, watch=watch):
        if isinstance(event, JobEnd):
            _record(event, store, campaign, engine)
        else:
            yield event
    for job in (job for job in campaign.jobs if job.alone):
        _record_alone(job, store)  # again, in case that they were ready before the federation
    for experiment in campaign.timed:
        record = store.record(experiment, experiment.seed)
        if record is not None and "error" not in record:
            seconds = head_seconds(experiment.model.head, experiment.seed)
            store.add(experiment, {**record, "head_seconds": seconds}, None)


def _record(event: JobEnd, store: Store, campaign: Campaign, engine: Engine) -> None:
    experiment, directory = event.job.experiment, RunDirectory(event.job.out)
    known = store.record(experiment, experiment.seed)
    if event.error is None and event.job.alone:
        _record_alone(event.job, store)
    elif event.error is None:
        found = record_of_run(directory)
        if found["numerics_version"] != NUMERICS_VERSION:
            raise RunError(f"{directory.path} was run by another version of the numerics; remove it to run it again")
        # A training that was repeated for another cell gives the same numbers: its first record is kept.
        record = found | ({} if known is None or "error" in known else known)
        if experiment.digest() in campaign.aligned:
            record |= compare_local_models(directory, engine, with_map=experiment.seed == 0)
        store.add(experiment, record, dataset_of_run(directory))
    elif not isinstance(event.error, FederationError | CalibrationError):
        raise event.error
    elif known is None and not event.job.alone:
        # Diverged (every update was rejected as not finite) or died (all features zero): a result, and a bad one.
        store.add(experiment, record_of_failure(str(event.error)), None)


def _record_alone(job: Job, store: Store) -> None:
    """Add the accuracy of clients that trained alone to the record of the federation, also of one that diverged."""
    record = store.record(job.experiment, job.experiment.seed)
    if record is not None and "local_only" not in record and is_trained_alone(job.out):
        store.add(job.experiment, {**record, "local_only": local_only_accuracy(job.out)}, None)


def _title(experiment: Experiment) -> str:
    """What the progress bar shows."""
    parts = [kind_of(experiment.model.head), kind_of(experiment.loss), f"lr {experiment.local_training.lr:g}"]
    if experiment.calibration is not None:
        parts.append(kind_of(experiment.calibration))
    return ", ".join(parts)
