"""Figures of training: accuracy against rounds, bytes and seconds; loss; consistency of client heads (Eq. 2, 3)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spherefed.report.curve_points import (
    Point,
    completed_rounds,
    cumulative_bytes,
    cumulative_seconds,
    curve_names,
    lines_of,
    mean_curve,
    points_of,
    trained_groups,
)
from spherefed.report.drawing import (
    WIDTH,
    Drawing,
    Spot,
    empty_figure,
    line_style,
    logarithmic,
    new_figure,
    place_legend,
    series,
    short,
    styled,
    thinned,
    whole_rounds,
)
from spherefed.report.groups import Group
from spherefed.report.result_figures import byte_unit, limit_accuracy
from spherefed.report.run_files import CALIBRATED, RoundLine, Run
from spherefed.report.summary import Row
from spherefed.report.tables import human_bytes, human_seconds, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curve_height(num_names: int) -> float:
    """Inches of a figure whose legend has so many lines."""
    return 2.75 + 0.155 * num_names


@styled
def accuracy_per_round(groups: Sequence[Group], rows: Sequence[Row]) -> Drawing:
    """Mean over seeds at the evaluated rounds, with a 95 % band; a diamond shows the accuracy after calibration."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(WIDTH, _height(groups, rows))
    last = max([1, *(run.rounds for group in groups for run in group.runs)])
    handles, spots, seen = _accuracy_curves(
        axes, groups, rows, completed_rounds, lambda point: f"round {point.completed}"
    )
    calibrated = [row for row in rows if row.stage == CALIBRATED]
    for number, row in enumerate(calibrated, start=1):
        # To the right of the last round, because calibration is not a round.
        x = groups[row.group].runs[0].rounds + last * 0.03 * number
        handles.append(_mark(axes, x, row))
        spots.append(Spot(axes, x, 100 * row.accuracy.mean, f"{row.label}, calibrated: {percent(row.accuracy)} %"))
        seen.append(100 * row.accuracy.mean)
    axes.set_xlim(0, last * (1 + 0.03 * (len(calibrated) + 1)))
    ticks = MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]).tick_values(0, last)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    axes.set_xlabel("round")
    _finish_accuracy(axes, handles, seen)
    description = "; ".join(f"{row.label} ends at {percent(row.accuracy)} per cent" for row in rows)
    return Drawing("rounds", "Accuracy per round", description, figure, spots)


@styled
def accuracy_per_byte(groups: Sequence[Group], rows: Sequence[Row]) -> Drawing:
    """Accuracy against the bytes that a client has sent and received so far."""
    ends = [max(cumulative_bytes(run).values(), default=0.0) for group in groups for run in group.runs]
    most = max([1.0, *(row.bytes_up + row.bytes_down for row in rows), *ends])
    power, unit = byte_unit(most)

    def along(run: Run) -> dict[int, float]:
        return {done: number / power for done, number in cumulative_bytes(run).items()}

    figure, axes = new_figure(WIDTH, _height(groups, rows))
    handles, spots, seen = _accuracy_curves(
        axes, groups, rows, along, lambda point: f"{human_bytes(point.x * power)} after round {point.completed}"
    )
    for row in (row for row in rows if row.stage == CALIBRATED):
        number = row.bytes_up + row.bytes_down
        handles.append(_mark(axes, number / power, row))
        text = f"{row.label}: {percent(row.accuracy)} % with {human_bytes(number)}"
        spots.append(Spot(axes, number / power, 100 * row.accuracy.mean, text))
        seen.append(100 * row.accuracy.mean)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} sent and received per client")
    _finish_accuracy(axes, handles, seen)
    description = "; ".join(
        f"{row.label} {percent(row.accuracy)} per cent with {human_bytes(row.bytes_up + row.bytes_down)}"
        for row in rows
    )
    return Drawing("bytes", "Accuracy against bytes per client", description, figure, spots)


@styled
def accuracy_per_second(groups: Sequence[Group], rows: Sequence[Row]) -> Drawing:
    """Accuracy against the time since the first round began."""
    figure, axes = new_figure(WIDTH, _height(groups, rows))
    handles, spots, seen = _accuracy_curves(
        axes, groups, rows, cumulative_seconds, lambda point: f"{human_seconds(point.x)}, round {point.completed}"
    )
    for row in (row for row in rows if row.stage == CALIBRATED):
        handles.append(_mark(axes, row.seconds, row))
        text = f"{row.label}: {percent(row.accuracy)} % after {human_seconds(row.seconds)}"
        spots.append(Spot(axes, row.seconds, 100 * row.accuracy.mean, text))
        seen.append(100 * row.accuracy.mean)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of computing")
    _finish_accuracy(axes, handles, seen)
    description = "; ".join(
        f"{row.label} {percent(row.accuracy)} per cent after {human_seconds(row.seconds)}" for row in rows
    )
    return Drawing("seconds", "Accuracy against seconds", description, figure, spots)


@styled
def loss_per_round(groups: Sequence[Group], rows: Sequence[Row]) -> Drawing:
    """The clients' mean training loss, each curve relative to its first round: losses of methods are not comparable."""
    names = curve_names(groups, trained_groups(groups, rows))
    figure, axes = new_figure(WIDTH, curve_height(len(names)))
    handles, spots = [], []
    for position, label in names.items():
        group = groups[position]
        points = mean_curve(group, lambda line: line.loss)
        if not points or not points[0].value.mean > 0:
            continue
        first = points[0].value.mean
        xs, ys = [point.x for point in points], [point.value.mean / first for point in points]
        handles += axes.plot(xs, ys, line_style(position), color=series(position), lw=1.8, label=short(label))
        for i in thinned(len(points)):
            text = f"{label}, round {xs[i]:.0f}: loss {points[i].value.mean:.4g}"
            spots.append(Spot(axes, xs[i], ys[i], text))
    logarithmic(axes)
    whole_rounds(axes)
    axes.set_ylabel("loss, first round = 1")
    axes.grid(axis="y")
    place_legend(axes, handles)
    description = "; ".join(spot.text for spot in spots[-1:])
    return Drawing("loss", "Training loss per round", description or "no round yet", figure, spots)


@styled
def consistency(groups: Sequence[Group], rows: Sequence[Row]) -> Drawing | None:
    """Eq. 2 and Eq. 3 per round; None if no run has a head that clients train."""
    found = [i for i in trained_groups(groups, rows) if any(r.cosine is not None for r in lines_of(groups[i]))]
    if not found:
        return None
    figure = empty_figure(WIDTH, 4.0 + 0.155 * len(found))
    spots: list[Spot] = []
    parts: tuple[tuple[str, Callable[[RoundLine], float | None]], ...] = (
        ("mean cosine (Eq. 2)", lambda line: line.cosine),
        ("mean norm difference (Eq. 3)", lambda line: line.norm_difference),
    )
    for number, (title, read) in enumerate(parts, start=1):
        axes = figure.add_subplot(2, 1, number)
        handles = []
        for position, label in curve_names(groups, found).items():
            points = mean_curve(groups[position], read)
            xs, ys = [point.x for point in points], [point.value.mean for point in points]
            handles += axes.plot(xs, ys, line_style(position), color=series(position), lw=1.8, label=short(label))
            spots += [Spot(axes, xs[i], ys[i], f"{label}, round {xs[i]:.0f}: {ys[i]:.4g}") for i in thinned(len(xs))]
        axes.set_ylabel(title)
        axes.grid(axis="y")
        whole_rounds(axes)
        if number == 1:
            place_legend(axes, handles)
            axes.set_xlabel("")
    description = "; ".join(spot.text for spot in spots[-1:])
    return Drawing("consistency", "Consistency of the clients' heads per round", description, figure, spots)


def _accuracy_curves(
    axes: "Axes",
    groups: Sequence[Group],
    rows: Sequence[Row],
    along: Callable[[Run], dict[int, float]],
    describe: Callable[[Point], str],
) -> tuple[list[Any], list[Spot], list[float]]:
    """Draw the curve of every training with its band; legend handles, spots, and all drawn means in per cent."""
    handles: list[Any] = []
    spots: list[Spot] = []
    seen: list[float] = []
    for position, label in curve_names(groups, trained_groups(groups, rows)).items():
        points = points_of(groups[position], along)
        if not points:
            continue
        hue = series(position)
        xs, means = [point.x for point in points], [100 * point.value.mean for point in points]
        halves = [100 * (point.value.half_width or 0.0) for point in points]
        handles += axes.plot(xs, means, line_style(position), color=hue, lw=1.8, label=short(label), zorder=3)
        if len(points) == 1:
            handles[-1].set_marker("o")
        lower = [max(m - h, 0.0) for m, h in zip(means, halves, strict=True)]
        upper = [min(m + h, 100.0) for m, h in zip(means, halves, strict=True)]
        if any(halves):
            axes.fill_between(xs, lower, upper, color=hue, alpha=0.14, lw=0, zorder=2)
        for i in thinned(len(points)):
            text = f"{label}, {describe(points[i])}: {percent(points[i].value)} %"
            spots.append(Spot(axes, xs[i], means[i], text))
        seen += [*lower, *upper]
    return handles, spots, seen


def _height(groups: Sequence[Group], rows: Sequence[Row]) -> float:
    return curve_height(len(trained_groups(groups, rows)) + sum(row.stage == CALIBRATED for row in rows))


def _finish_accuracy(axes: "Axes", handles: list[Any], seen: Sequence[float]) -> None:
    limit_accuracy(axes.set_ylim, seen)
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y")
    if handles:
        place_legend(axes, handles)


def _mark(axes: "Axes", x: float, row: Row) -> Any:
    half = 100 * (row.accuracy.half_width or 0.0)
    return axes.errorbar(
        x, 100 * row.accuracy.mean, yerr=half or None, fmt="D", ms=6, color=series(row.group), elinewidth=1.4,
        capsize=2.5, label=short(row.label), zorder=4,
    )  # fmt: skip
