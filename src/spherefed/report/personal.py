"""The table of personal models (Table 8): mean ± standard deviation over clients, averaged over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spherefed.report.groups import Group
from spherefed.report.reports import Report, read_report
from spherefed.report.run_files import Run
from spherefed.report.summary import PERSONAL_TEST, Estimate
from spherefed.report.tables import Cells, points, width_text

CAPTION = (
    "Accuracy of each client's personal model on its own held-out examples, in per cent: mean ± standard deviation "
    "over clients, both averaged over seeds. Interval: half-width of the mean's 95 % confidence interval (Student's t "
    "over seeds). Differences: paired by seed, in percentage points."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonalRow:
    """A personalised method."""

    label: str
    seeds: tuple[int, ...]
    mean: Estimate
    """The mean over clients, estimated over seeds."""
    std: float
    """The standard deviation over clients, averaged over seeds."""
    difference: Estimate | None
    """To the first row, paired by seed and partition; None for the first row, and if there are no pairs."""


def personal_rows(paths: Iterable[Path]) -> tuple[PersonalRow, ...]:
    """One row per method with personal models among the runs at or below `paths`; empty if there is none."""
    return rows_of(read_report(paths))


def rows_of(report: Report) -> tuple[PersonalRow, ...]:
    """The same, of runs that have been read."""
    summary = next((each for each in report.summaries if each.measure == PERSONAL_TEST), None)
    return tuple(
        PersonalRow(
            label=row.label,
            seeds=row.seeds,
            mean=row.accuracy,
            std=_mean_std(report.groups[row.group], row.seeds),
            difference=row.difference,
        )
        for row in (summary.rows if summary else ())
    )


def personal_cells(rows: Sequence[PersonalRow]) -> Cells:
    """The table as text."""
    columns = ("method", "seeds", "mean ± std over clients", "interval", f"vs {rows[0].label}")
    lines = (
        (
            row.label,
            str(len(row.seeds)),
            f"{100 * row.mean.mean:.2f} ± {100 * row.std:.2f}",
            width_text(row.mean) or "–",
            "baseline" if row is rows[0] else "–" if row.difference is None else points(row.difference),
        )
        for row in rows
    )
    return Cells(columns=columns, lines=tuple(lines))


def _mean_std(group: Group, seeds: Sequence[int]) -> float:
    runs: list[Run] = [run for run in group.runs if run.seed in seeds]
    return sum(float(run.personal["std"]) for run in runs if run.personal) / len(runs)
