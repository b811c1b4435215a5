"""The points of curves: values of rounds, mean over the seeds of a group, and what rounds have cost so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spherefed.report.groups import Group, training_part
from spherefed.report.run_files import TRAINED, RoundLine, Run
from spherefed.report.summary import GLOBAL_TEST, Estimate, Row, estimate


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve: mean over seeds."""

    x: float
    value: Estimate
    completed: int
    """Completed rounds."""


def trained_groups(groups: Sequence[Group], rows: Sequence[Row]) -> list[int]:
    """The groups that have a curve: groups with the same training share the curve of the first one."""
    finished = {row.group for row in rows if row.stage == TRAINED}
    ongoing = {i for i, group in enumerate(groups) if not any(run.finished for run in group.runs)}
    shown: list[int] = []
    for i in sorted(finished | ongoing):
        part = training_part(groups[i].experiment)
        new = all(training_part(groups[other].experiment) != part for other in shown)
        if new and any(run.lines for run in groups[i].runs):
            shown.append(i)
    return shown


def curve_names(groups: Sequence[Group], shown: Sequence[int]) -> dict[int, str]:
    """The name of each curve: that of the training, or of the whole method if two have the same."""
    names = [groups[i].labels[TRAINED] for i in shown]
    return {i: groups[i].name if names.count(name) > 1 else name for i, name in zip(shown, names, strict=True)}


def curve(group: Group, accuracy: str = GLOBAL_TEST) -> list[tuple[int, Estimate]]:
    """(completed rounds, accuracy) at the rounds that every seed evaluated; the last point is the trained model."""
    return [(point.completed, point.value) for point in points_of(group, completed_rounds, accuracy)]


def cumulative_bytes(run: Run) -> dict[int, float]:
    """Bytes per client, sent and received, after each number of completed rounds."""
    num_clients = max(run.partition.num_clients, 1)
    sums = accumulate(sum(line.bytes_up.values()) + sum(line.bytes_down.values()) for line in run.lines)
    return {line.index + 1: total / num_clients for line, total in zip(run.lines, sums, strict=True)}


def cumulative_seconds(run: Run) -> dict[int, float]:
    """Seconds after each number of completed rounds."""
    sums = accumulate(line.seconds for line in run.lines)
    return {line.index + 1: total for line, total in zip(run.lines, sums, strict=True)}


def completed_rounds(run: Run) -> dict[int, float]:
    return {done: float(done) for done in {run.rounds, *(line.index + 1 for line in run.lines)}}


def points_of(group: Group, along: Callable[[Run], dict[int, float]], accuracy: str = GLOBAL_TEST) -> list[Point]:
    """The curve at the rounds that every seed evaluated; if no run of the group is finished, that any has evaluated."""
    finished = [run for run in group.runs if run.finished]
    curves, positions = [], []
    for run in finished or group.runs:
        values = {done + 1: found[accuracy] for done, found in run.evaluated.items() if accuracy in found}
        if TRAINED in run.stages and accuracy in run.stages[TRAINED].accuracy:
            values[run.rounds] = run.stages[TRAINED].accuracy[accuracy]
        position = along(run)
        curves.append({done: value for done, value in values.items() if done in position})
        positions.append(position)
    if not curves:
        return []
    every = set.intersection(*map(set, curves)) if finished else set.union(*map(set, curves))
    found_points = []
    for done in sorted(every):
        having = [i for i, found in enumerate(curves) if done in found]
        x = sum(positions[i][done] for i in having) / len(having)
        found_points.append(Point(x, estimate([curves[i][done] for i in having]), done))
    return found_points


def mean_curve(group: Group, read: Callable[[RoundLine], float | None]) -> list[Point]:
    """A value of every round: mean over the seeds that have it."""
    values: dict[int, list[float]] = {}
    for line in lines_of(group):
        value = read(line)
        if value is not None:
            values.setdefault(line.index + 1, []).append(value)
    return [Point(float(done), estimate(found), done) for done, found in sorted(values.items())]


def lines_of(group: Group) -> list[RoundLine]:
    return [line for run in group.runs for line in run.lines]
