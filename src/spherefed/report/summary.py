"""Runs → groups → rows: means over seeds, their confidence intervals, paired differences to a baseline.

A group is an experiment without its seed. A row is a group at a stage (trained, calibrated). All intervals are 95 %,
two-sided, Student's t over seeds; a single seed has a mean and no interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spherefed.errors import RunError
from spherefed.report.labels import base_name, distinguish, is_plain, is_spherefed, stage_names
from spherefed.report.reading import CALIBRATED, TRAINED, Run, Stage, read_runs
from spherefed.schema import differences

GLOBAL_TEST = "global_model/global_test"
"""The accuracy that is compared unless another is asked for: the global model on the global test set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float | None
    """None for a single number, whose spread is unknown."""
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The runs of one experiment, in the order of their seeds."""

    experiment: Mapping[str, Any]
    """Without the seed."""
    runs: tuple[Run, ...]
    labels: Mapping[str, str]
    """What the group is called at each stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method at a stage; everything is a mean over seeds unless it says otherwise."""

    label: str
    stage: str
    group: int
    """Position of its group in the summary."""
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """By seed."""
    partitions: tuple[str, ...]
    """Digest of the partition, by seed: only equal partitions are paired."""
    accuracy: Estimate
    difference: Estimate | None
    """To the first row, paired by seed; None for that row itself and where nothing can be paired."""
    bytes_up: float
    bytes_down: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a report says. The first row is the baseline."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What a reader must know: runs that were skipped, seeds that could not be paired."""

    @property
    def baseline(self) -> Row:
        return self.rows[0]


def summarize(paths: Iterable[Path], accuracy: str | None = None) -> Summary:
    """Read the runs at or below `paths` and compare them by the accuracy of that name.

    By default on the global test set; where some run has no global model, by the first accuracy that all runs have.
    """
    runs, skipped = read_runs(paths)
    groups, repeated = group_runs(runs)
    name = accuracy or _common_accuracy(runs)
    rows = compare(groups, name)
    told = () if name == (accuracy or GLOBAL_TEST) else (f"Accuracy is {name}: not every run has {GLOBAL_TEST}.",)
    return Summary(groups=groups, rows=rows, notes=(*told, *skipped, *repeated, *_doubts(groups, rows)))


def _common_accuracy(runs: Sequence[Run]) -> str:
    stages = [stage.accuracy for run in runs for stage in run.stages.values()]
    common = [name for name in stages[0] if all(name in other for other in stages)] if stages else []
    return GLOBAL_TEST if GLOBAL_TEST in common or not common else common[0]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and half-width t(0.975, n − 1) · s / √n.

    >>> estimate([0.5])
    Estimate(mean=0.5, half_width=None, count=1)
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean=mean, half_width=None, count=1)
    from scipy.stats import t

    s = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Estimate(mean=mean, half_width=float(t.ppf(0.975, n - 1)) * s / math.sqrt(n), count=n)


def paired_difference(row: Row, other: Row) -> Estimate | None:
    """`row` − `other` over the seeds that both ran on the same partition; None if there is no such seed."""
    theirs = dict(zip(zip(other.seeds, other.partitions, strict=True), other.accuracies, strict=True))
    ours = zip(zip(row.seeds, row.partitions, strict=True), row.accuracies, strict=True)
    pairs = [accuracy - theirs[key] for key, accuracy in ours if key in theirs]
    return estimate(pairs) if pairs else None


def leader(rows: Sequence[Row]) -> tuple[Row, tuple[Row, ...]]:
    """The row with the highest mean, and the rows from which it cannot be told apart.

    Two rows are told apart if the interval of their paired difference excludes 0 (no correction for many rows).
    """
    best = max(rows, key=lambda row: row.accuracy.mean)
    rivals = []
    for row in rows:
        difference = paired_difference(best, row)
        if row is not best and not (difference and difference.excludes_zero):
            rivals.append(row)
    return best, tuple(rivals)


def group_runs(runs: Iterable[Run]) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Runs by experiment without seed, base methods first; a note for each seed that was run twice.

    A seed counts once, whatever the number of its runs: repeating a run must not narrow an interval.
    """
    experiments: list[dict[str, Any]] = []
    members: list[dict[int, Run]] = []
    notes = []
    for run in runs:
        experiment = {name: value for name, value in run.experiment.items() if name != "seed"}
        place = next((i for i, known in enumerate(experiments) if not differences(known, experiment)), None)
        if place is None:
            place = len(experiments)
            experiments.append(experiment)
            members.append({})
        first = members[place].setdefault(run.seed, run)
        if first is not run:
            same = "the same weights" if first.weights_sha256 == run.weights_sha256 else "other weights"
            notes.append(f"{run.name} repeats {first.name} (same experiment and seed, {same}) and was not counted.")
    order = sorted(range(len(experiments)), key=lambda i: (*_rank(experiments[i]), i))
    experiments = [experiments[i] for i in order]
    labels = _labels(experiments)
    groups = tuple(
        Group(experiment=experiment, labels=label, runs=tuple(run for _, run in sorted(members[i].items())))
        for i, experiment, label in zip(order, experiments, labels, strict=True)
    )
    return groups, tuple(notes)


def compare(groups: Sequence[Group], accuracy: str = GLOBAL_TEST) -> tuple[Row, ...]:
    """A row per group and stage, each with its paired difference to the first.

    Groups that differ only in their calibration share a training: its row is shown once.
    """
    rows: list[Row] = []
    for position, group in enumerate(groups):
        for stage in (TRAINED, CALIBRATED):
            if stage == TRAINED and any(_same_training(group, earlier) for earlier in groups[:position]):
                continue
            if any(stage in run.stages for run in group.runs):
                row = _row(position, group, stage, accuracy)
                rows.append(_with_difference(row, rows[0]) if rows else row)
    return tuple(rows)


def _same_training(group: Group, other: Group) -> bool:
    """Whether two groups differ in nothing but the calibration, and were run for the same seeds."""
    same = _untouched(group.experiment) == _untouched(other.experiment)
    return same and {run.seed for run in group.runs} <= {run.seed for run in other.runs}


def _untouched(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment as far as training goes."""
    return {**experiment, "calibration": None}


def _row(position: int, group: Group, stage: str, name: str) -> Row:
    runs = [run for run in group.runs if stage in run.stages]
    stages = [run.stages[stage] for run in runs]
    accuracies = tuple(_accuracy(run, run.stages[stage], name) for run in runs)
    return Row(
        label=group.labels[stage],
        stage=stage,
        group=position,
        seeds=tuple(run.seed for run in runs),
        accuracies=accuracies,
        partitions=tuple(run.partition.digest for run in runs),
        accuracy=estimate(accuracies),
        difference=None,
        bytes_up=_mean(stage.bytes_up for stage in stages),
        bytes_down=_mean(stage.bytes_down for stage in stages),
        seconds=_mean(stage.seconds for stage in stages),
    )


def _with_difference(row: Row, baseline: Row) -> Row:
    return replace(row, difference=paired_difference(row, baseline))


def _accuracy(run: Run, stage: Stage, name: str) -> float:
    if name not in stage.accuracy:
        raise RunError(f"{run.name} has no accuracy {name!r}; it has {', '.join(stage.accuracy) or 'none'}")
    return stage.accuracy[name]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _rank(experiment: Mapping[str, Any]) -> tuple[int, int, str]:
    """Base methods before what is laid over them, SphereFed last; FedAvg before the other algorithms."""
    base = base_name(experiment)
    overlay = 0 if is_plain(experiment) else 2 if is_spherefed(experiment) else 1
    return overlay, int(base != "FedAvg"), base


def _labels(experiments: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names of each group by stage; a name shared by several groups says what differs."""
    labels: list[dict[str, str]] = [{} for _ in experiments]
    names = [stage_names(experiment) for experiment in experiments]
    for index, stage in enumerate((TRAINED, CALIBRATED)):
        for name in {pair[index] for pair in names}:
            places = [i for i, pair in enumerate(names) if pair[index] == name]
            # As trained, experiments that differ only in their calibration are one and the same.
            plain = [_untouched(experiments[i]) if stage == TRAINED else experiments[i] for i in places]
            unique = [plain[i] for i in range(len(plain)) if plain[i] not in plain[:i]]
            told = distinguish(name, unique)
            for i, experiment in zip(places, plain, strict=True):
                labels[i][stage] = told[unique.index(experiment)]
    return labels


def _doubts(groups: Sequence[Group], rows: Sequence[Row]) -> list[str]:
    """What weakens the comparison."""
    notes = []
    data = sorted({str((group.experiment.get("data") or {}).get("name")) for group in groups})
    if len(data) > 1:
        notes.append(f"The runs are of different data sets ({', '.join(data)}): their accuracies do not compare.")
    baseline = rows[0]
    for row in rows[1:]:
        shared = row.difference.count if row.difference else 0
        if shared < max(len(row.seeds), len(baseline.seeds)):
            notes.append(
                f"{row.label} and {baseline.label} share seed and partition in {shared} of their "
                f"{len(row.seeds)} and {len(baseline.seeds)} runs; their difference uses only these."
            )
    return notes
