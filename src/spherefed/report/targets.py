"""Rounds, bytes and seconds until a target accuracy is reached."""

from collections.abc import Sequence
from statistics import fmean

from spherefed.report.curve_points import cumulative_bytes, cumulative_seconds, curve_names, trained_groups
from spherefed.report.groups import Group
from spherefed.report.run_files import Run
from spherefed.report.summary import GLOBAL_TEST, Row
from spherefed.report.tables import Cells, human_bytes, human_seconds

FRACTIONS = (0.8, 0.9, 0.95)
"""Default targets: these fractions of the baseline's final accuracy, rounded down to whole per cent."""


def default_targets(rows: Sequence[Row]) -> list[float]:
    """Targets that the baseline reaches, in ascending order."""
    final = rows[0].accuracy.mean
    return sorted({int(100 * fraction * final) / 100 for fraction in FRACTIONS if int(100 * fraction * final)})


def target_table(groups: Sequence[Group], rows: Sequence[Row], targets: Sequence[float]) -> Cells:
    """The first evaluated round with at least the target accuracy, with the bytes and seconds so far: mean over seeds.

    Only evaluated rounds count, so a run that is evaluated rarely may have reached the target earlier.
    """
    lines = []
    for position, name in curve_names(groups, trained_groups(groups, rows)).items():
        runs = [run for run in groups[position].runs if run.finished and _has_curve(run)]
        if runs:
            texts = [_reached_text(runs, target) for target in targets]
            lines.append((name, *texts))
    return Cells(columns=("method", *(f"{100 * target:g} %" for target in targets)), lines=tuple(lines))


def first_round(run: Run, target: float) -> int | None:
    """Completed rounds when the target was first measured; None if it never was."""
    for line in run.lines:
        if line.accuracy.get(GLOBAL_TEST, -1.0) >= target:
            return line.index + 1
    return None


def _has_curve(run: Run) -> bool:
    return any(GLOBAL_TEST in line.accuracy for line in run.lines)


def _reached_text(runs: Sequence[Run], target: float) -> str:
    reached = [(run, done) for run in runs if (done := first_round(run, target)) is not None]
    if not reached:
        return "not reached"
    rounds = fmean(done for _, done in reached)
    number = fmean(cumulative_bytes(run)[done] for run, done in reached)
    seconds = fmean(cumulative_seconds(run)[done] for run, done in reached)
    some = f" ({len(reached)} of {len(runs)} seeds)" if len(reached) < len(runs) else ""
    size = f", {human_bytes(number)}" if number else ""
    return f"round {rounds:.3g}{some}{size}, {human_seconds(seconds)}"
