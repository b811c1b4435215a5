"""Runs → groups → rows: means over seeds, their confidence intervals, paired differences to a baseline.

A group is an experiment without its seed. A row is a group at one stage (trained, calibrated). All intervals are 95 %,
two-sided, Student's t over seeds. A single seed has a mean and no interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spherefed.errors import ConfigError, RunError
from spherefed.report.groups import PERSONAL, Group, group_runs, training_part
from spherefed.report.method_names import is_one_shot
from spherefed.report.run_files import CALIBRATED, TRAINED, Run, Stage, read_runs
from spherefed.schema import suggest

GLOBAL_TEST = "global_model/global_test"
"""The accuracy that is compared by default: the global model on the global test set."""
PERSONAL_TEST = "personal_model/local_test/by_clients"
LOCAL_TEST = "global_model/local_test/by_clients"

MEASURES = {
    GLOBAL_TEST: "Global model on the test set",
    PERSONAL_TEST: "Personal models on each client's held-out examples",
    LOCAL_TEST: "Global model on the clients' held-out examples",
}
"""What is compared: the accuracies that have a table of their own, with their names in words."""

ACCURACY = "accuracy"
METRICS = {ACCURACY: ACCURACY, "balanced-accuracy": "balanced_accuracy", "macro-f1": "macro_f1"}
"""Name of a metric → its key in `measures` of `result.json`; `recall:CLASS` is a metric too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float | None
    """None for a single value: its variance is unknown."""
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A method at one stage. Values are means over seeds unless stated otherwise."""

    label: str
    stage: str
    group: int
    """Index of its group in the summary."""
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """By seed."""
    partitions: tuple[tuple[str, str], ...]
    """Data set and digest of the partition, by seed; only runs that are equal in both are paired."""
    accuracy: Estimate
    difference: Estimate | None
    """To the first row, paired by seed; None for the first row, and if there are no pairs."""
    bytes_up: float
    bytes_down: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The content of a report. The first row is the baseline."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """Limits of the comparison: skipped runs, seeds without a pair."""
    measure: str = GLOBAL_TEST
    """The name of the accuracy that is compared."""
    metric: str = ACCURACY
    """What the rows call accuracy: one of `METRICS`, or `recall:CLASS`."""

    @property
    def baseline(self) -> Row:
        return self.rows[0]


def summarize(paths: Iterable[Path], accuracy: str | None = None, metric: str = ACCURACY) -> Summary:
    """Read the runs at or below `paths` and compare them by the accuracy of this name, or by another metric of it.

    The default is the global test set; if a run has no global model, the first accuracy that all runs have.
    """
    check_metric(metric)
    runs, skipped = read_runs(paths)
    groups, repeated = group_runs(runs)
    name = accuracy or _common_accuracy(runs)
    rows = compare(groups, name, metric=metric)
    note = () if name == (accuracy or GLOBAL_TEST) else (f"Accuracy is {name}: not every run has {GLOBAL_TEST}.",)
    notes = (*note, *skipped, *repeated, *comparison_notes(groups, rows))
    return Summary(groups=groups, rows=rows, notes=notes, measure=name, metric=metric)


def check_metric(metric: str) -> None:
    """Raise a ConfigError that lists the metrics if this is none."""
    if metric not in METRICS and not metric.startswith("recall:"):
        raise ConfigError(f"unknown metric {metric!r}; {suggest(metric, [*METRICS, 'recall:CLASS'])}")


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
    """`row` − `other` over the seeds that both ran on the same partition of the same data; None if there is none."""
    theirs = dict(zip(zip(other.seeds, other.partitions, strict=True), other.accuracies, strict=True))
    ours = zip(zip(row.seeds, row.partitions, strict=True), row.accuracies, strict=True)
    pairs = [accuracy - theirs[key] for key, accuracy in ours if key in theirs]
    return estimate(pairs) if pairs else None


def leader(rows: Sequence[Row]) -> tuple[Row, tuple[Row, ...]]:
    """The row with the highest mean, and the rows from which it cannot be distinguished.

    Two rows are distinguished if the interval of their paired difference excludes 0 (no correction for many rows).
    """
    best = max(rows, key=lambda row: row.accuracy.mean)
    rivals = []
    for row in rows:
        difference = paired_difference(best, row)
        if row is not best and not (difference and difference.excludes_zero):
            rivals.append(row)
    return best, tuple(rivals)


def compare(
    groups: Sequence[Group],
    accuracy: str = GLOBAL_TEST,
    chosen: Sequence[Group] | None = None,
    *,
    metric: str = ACCURACY,
) -> tuple[Row, ...]:
    """One row per group and stage, each with its paired difference to the first row.

    Groups that differ only in their calibration share the trained model, whose row appears once; personal models are
    never shared. `chosen` are the groups to compare; without it, every stage of every run must have this accuracy.
    """
    rows: list[Row] = []
    for position, group in enumerate(groups):
        if chosen is not None and all(group is not each for each in chosen):
            continue
        for stage in _stages(groups[:position], group, accuracy):
            runs = [run for run in group.runs if stage in run.stages]
            if chosen is not None:
                runs = [run for run in runs if accuracy in run.stages[stage].accuracy]
            if runs:
                row = _row(position, group, runs, stage, accuracy, metric)
                rows.append(_with_difference(row, rows[0]) if rows else row)
    return tuple(rows)


def _stages(earlier: Sequence[Group], group: Group, accuracy: str) -> tuple[str, ...]:
    """The stages of a group that have a row of their own."""
    if accuracy.startswith("personal_model/"):
        return (TRAINED,)
    nothing_trained = is_one_shot(group.experiment) and any(CALIBRATED in run.stages for run in group.runs)
    shared = any(_same_training(group, other) for other in earlier)
    return (CALIBRATED,) if nothing_trained or shared else (TRAINED, CALIBRATED)


def _same_training(group: Group, other: Group) -> bool:
    """Whether two groups differ in nothing but the calibration, and were run for the same seeds."""
    same = training_part(group.experiment) == training_part(other.experiment)
    return same and _finished_seeds(group) <= _finished_seeds(other)


def _finished_seeds(group: Group) -> set[int]:
    return {run.seed for run in group.runs if run.finished}


def _row(position: int, group: Group, runs: Sequence[Run], stage: str, name: str, metric: str) -> Row:
    personal = name.startswith("personal_model/")
    stages = [run.stages[stage] for run in runs]
    accuracies = tuple(_value(run, run.stages[stage], name, metric) for run in runs)
    return Row(
        label=group.labels[PERSONAL if personal else stage],
        stage=stage,
        group=position,
        seeds=tuple(run.seed for run in runs),
        accuracies=accuracies,
        partitions=tuple((_data_set(run.experiment), run.partition.digest) for run in runs),
        accuracy=estimate(accuracies),
        difference=None,
        bytes_up=_mean(stage.bytes_up for stage in stages),
        bytes_down=_mean(stage.bytes_down for stage in stages),
        seconds=_mean(stage.seconds for stage in stages),
    )


def _with_difference(row: Row, baseline: Row) -> Row:
    return replace(row, difference=paired_difference(row, baseline))


def _value(run: Run, stage: Stage, name: str, metric: str) -> float:
    """The accuracy of this name, or another metric on the same examples."""
    if name not in stage.accuracy:
        raise RunError(f"{run.name} has no accuracy {name!r}; it has {', '.join(stage.accuracy) or 'none'}")
    if metric == ACCURACY:
        return stage.accuracy[name]
    # Counts of classes are summed over clients, so the other metrics weigh all examples alike.
    found = stage.measures.get(name.replace("by_clients", "by_samples"))
    if found is None:
        raise RunError(f"{run.name} has no {metric} for {name!r}: it was written by an earlier version; run it again")
    if metric in METRICS:
        return float(found[METRICS[metric]])
    wanted = metric.partition(":")[2]
    if wanted not in run.classes:
        raise ConfigError(f"{run.name} has no class {wanted!r} for {metric!r}; {suggest(wanted, run.classes)}")
    recall = found["recall"][run.classes.index(wanted)]
    if recall is None:
        raise ConfigError(f"{run.name} has no test example of class {wanted!r}, so {metric!r} is not defined")
    return float(recall)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _data_set(experiment: Mapping[str, Any]) -> str:
    return str((experiment.get("data") or {}).get("name"))


def comparison_notes(groups: Sequence[Group], rows: Sequence[Row]) -> list[str]:
    """Notes on what weakens the comparison."""
    notes = []
    data = sorted({_data_set(group.experiment) for group in groups})
    if len(data) > 1:
        notes.append(f"The runs use different data sets ({', '.join(data)}): their accuracies are not comparable.")
    baseline = rows[0]
    for row in rows[1:]:
        shared = row.difference.count if row.difference else 0
        if not shared:
            notes.append(
                f"{row.label} and {baseline.label} have no seed, data and partition in common, and so no difference."
            )
        elif shared < max(len(row.seeds), len(baseline.seeds)):
            notes.append(
                f"{row.label} and {baseline.label} share seed and partition in {shared} of their "
                f"{len(row.seeds)} and {len(baseline.seeds)} runs; their difference uses only these runs."
            )
    return notes
