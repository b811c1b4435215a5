"""The table of clients' own models (Table 8): mean ± standard deviation over clients, averaged over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.report.labels import distinguish, personal_name
from spherefed.report.reading import Run, read_runs
from spherefed.report.summary import GLOBAL_TEST, Estimate, Group, estimate, group_runs
from spherefed.report.tables import Cells, percent, points

CAPTION = (
    "Accuracy of each client's own model on its own held-out examples, in per cent: mean ± standard deviation over "
    "clients, both averaged over seeds. Interval: half-width of the mean's 95 % confidence interval (Student's t over "
    "seeds). Differences: paired by seed, in percentage points."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonalRow:
    """A personalised method."""

    label: str
    seeds: tuple[int, ...]
    mean: Estimate
    """Of the clients' mean, over seeds."""
    std: float
    """Over clients, averaged over seeds."""
    difference: Estimate | None
    """To the first row, paired by seed and partition; None for that row itself and where nothing can be paired."""


def personal_rows(paths: Iterable[Path]) -> tuple[PersonalRow, ...]:
    """A row per method that gave clients models of their own, at or below `paths`; none if there is no such run."""
    groups, _ = group_runs(run for run in read_runs(paths)[0] if run.personal is not None)
    labels = _labels(groups)
    return tuple(
        PersonalRow(
            label=label,
            seeds=tuple(run.seed for run in group.runs),
            mean=estimate(list(_means(group.runs).values())),
            std=sum(_spread(run, "std") for run in group.runs) / len(group.runs),
            difference=_difference(group, groups[0]),
        )
        for group, label in zip(groups, labels, strict=True)
    )


def tested_globally(paths: Iterable[Path]) -> bool:
    """Whether every run has a test set that is nobody's own, so that global models can be compared as well."""
    return all(GLOBAL_TEST in stage.accuracy for run in read_runs(paths)[0] for stage in run.stages.values())


def personal_cells(rows: Sequence[PersonalRow]) -> Cells:
    """The table as text."""
    columns = ("method", "seeds", "mean ± std over clients", "interval", f"vs {rows[0].label}")
    lines = (
        (
            row.label,
            str(len(row.seeds)),
            f"{100 * row.mean.mean:.2f} ± {100 * row.std:.2f}",
            percent(row.mean).partition(" ")[2],
            "baseline" if row is rows[0] else "–" if row.difference is None else points(row.difference),
        )
        for row in rows
    )
    return Cells(columns=columns, lines=tuple(lines))


def _labels(groups: Sequence[Group]) -> list[str]:
    names = [personal_name(group.experiment) for group in groups]
    told = {name: iter(distinguish(name, _named(name, names, groups))) for name in names}
    return [next(told[name]) for name in names]


def _named(name: str, names: Sequence[str], groups: Sequence[Group]) -> list[dict[str, object]]:
    return [dict(group.experiment) for group, other in zip(groups, names, strict=True) if other == name]


def _difference(group: Group, first: Group) -> Estimate | None:
    if group is first:
        return None
    ours, theirs = _means(group.runs), _means(first.runs)
    pairs = [ours[key] - theirs[key] for key in ours if key in theirs]
    return estimate(pairs) if pairs else None


def _means(runs: Iterable[Run]) -> dict[tuple[int, str], float]:
    return {(run.seed, run.partition.digest): _spread(run, "mean") for run in runs}


def _spread(run: Run, name: str) -> float:
    assert run.personal is not None
    return run.personal[name]
