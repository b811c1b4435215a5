"""Runs of any kind in one report: one summary per measure, so that every group has a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spherefed.report.groups import Group, group_runs, labels_of
from spherefed.report.run_files import Run, read_runs
from spherefed.report.summary import (
    ACCURACY,
    GLOBAL_TEST,
    LOCAL_TEST,
    MEASURES,
    PERSONAL_TEST,
    Row,
    Summary,
    check_metric,
    compare,
    comparison_notes,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Runs of any kind: one summary per measure, so that every group has a table."""

    groups: tuple[Group, ...]
    summaries: tuple[Summary, ...]
    """Empty while no run is finished."""
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def rows(self) -> list[Row]:
        return [row for summary in self.summaries for row in summary.rows]


def read_report(paths: Iterable[Path], *, unfinished: bool = False, metric: str = ACCURACY) -> Report:
    """The runs at or below `paths`, compared by every measure of `MEASURES` that any of them has.

    A group whose clients have personal models is compared by these, not by its global model on the clients' examples.
    """
    check_metric(metric)
    runs, skipped = read_runs(paths, unfinished=unfinished)
    groups, repeated = group_runs(runs)
    groups = _labelled(groups)
    summaries = []
    for measure in MEASURES:
        chosen = [group for group in groups if measure in _measured(group)]
        if measure == LOCAL_TEST:
            chosen = [group for group in chosen if not {GLOBAL_TEST, PERSONAL_TEST} & _measured(group)]
        if chosen:
            rows = compare(groups, measure, chosen, metric=metric)
            notes = tuple(comparison_notes(chosen, rows))
            summaries.append(Summary(groups=groups, rows=rows, notes=notes, measure=measure, metric=metric))
    return Report(groups=groups, summaries=tuple(summaries), notes=(*skipped, *repeated))


def _labelled(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with names that are unique among those of the same table: others need no long names."""
    finished = {_held_out(group): frozenset(_measured(group)) for group in groups if _measured(group)}
    kinds = [frozenset(_measured(group)) or finished.get(_held_out(group), frozenset()) for group in groups]
    labels: dict[int, dict[str, str]] = {}
    for kind in set(kinds):
        members = [i for i, each in enumerate(kinds) if each == kind]
        labels |= dict(zip(members, labels_of([groups[i] for i in members]), strict=True))
    return tuple(replace(group, labels=labels[i]) for i, group in enumerate(groups))


def _held_out(group: Group) -> bool:
    return bool((group.experiment.get("data") or {}).get("held_out"))


def _measured(group: Group) -> set[str]:
    """The measures that its runs have."""
    return {name for run in group.runs for stage in run.stages.values() for name in stage.accuracy} & MEASURES.keys()
