"""Figures of final results: accuracy of every method and seed, and traffic."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spherefed.report.drawing import (
    WIDTH,
    Drawing,
    Spot,
    colour,
    new_figure,
    place_legend,
    series,
    styled,
    wrapped,
    write_right_of,
)
from spherefed.report.run_files import CALIBRATED
from spherefed.report.summary import Row
from spherefed.report.tables import human_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_SPAN = 1.0
"""Percentage points that an axis of accuracies covers at least: a smaller range would show noise as differences."""


@styled
def final_accuracy(rows: Sequence[Row], name: str = "final") -> Drawing:
    """One dot per seed, with the mean and its 95 % interval above; a dashed line marks the baseline's mean."""
    figure, axes = new_figure(WIDTH, 0.8 + 0.46 * len(rows))
    axes.axvline(100 * rows[0].accuracy.mean, color=colour("axis"), lw=0.8, ls="--", zorder=1)
    spots, ends = [], []
    for y, row in enumerate(rows):
        hue = series(row.group)
        seeds = [100 * value for value in row.accuracies]
        axes.plot(seeds, [y + 0.22] * len(seeds), "o", ms=4, color=hue, alpha=0.55, mew=0, zorder=2)
        mean, half = 100 * row.accuracy.mean, 100 * (row.accuracy.half_width or 0.0)
        ends += [*seeds, mean - half, mean + half]
        face = hue if row.stage == CALIBRATED else colour("surface")
        axes.errorbar(
            mean, y - 0.1, xerr=half or None, fmt="D" if row.stage == CALIBRATED else "o", ms=6, mfc=face, mec=hue,
            mew=1.5, color=hue, ecolor=hue, elinewidth=1.6, capsize=3, zorder=3,
        )  # fmt: skip
        write_right_of(axes, y, percent(row.accuracy))
        spots.append(Spot(axes, mean, y - 0.1, f"{row.label}: {percent(row.accuracy)} %"))
        for seed, value in zip(row.seeds, seeds, strict=True):
            spots.append(Spot(axes, value, y + 0.22, f"{row.label}, seed {seed}: {value:.2f} %"))
    _name_rows(axes, rows)
    limit_accuracy(axes.set_xlim, ends)
    axes.set_xlabel("accuracy, %")
    axes.grid(axis="x")
    description = "; ".join(f"{row.label} {percent(row.accuracy)} per cent" for row in rows)
    return Drawing(name, "Final accuracy by method, every seed shown", description, figure, spots)


@styled
def traffic(rows: Sequence[Row], name: str = "traffic") -> Drawing:
    """Bytes that a client sends and receives in the whole run: mean over clients and seeds."""
    figure, axes = new_figure(WIDTH, 0.9 + 0.44 * len(rows))
    most = max([1.0, *(max(row.bytes_up, row.bytes_down) for row in rows)])
    power, unit = byte_unit(most)
    spots = []
    for y, row in enumerate(rows):
        for offset, number, opacity, direction in (
            (-0.17, row.bytes_up, 0.95, "sent"),
            (0.17, row.bytes_down, 0.5, "received"),
        ):
            label = direction if y == 0 else None
            axes.barh(y + offset, number / power, height=0.3, color=colour("series-0"), alpha=opacity, label=label)
            axes.text(number / power + most / power * 0.012, y + offset, human_bytes(number), va="center", fontsize=7.5)
            text = f"{row.label}: {human_bytes(number)} {direction} per client"
            spots.append(Spot(axes, 0, y + offset - 0.15, text, (max(number, 0.03 * most) / power, y + offset + 0.15)))
    _name_rows(axes, rows)
    axes.set_xlim(0, most / power * 1.16)
    axes.set_xlabel(f"{unit} per client")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    place_legend(axes, axes.get_legend_handles_labels()[0])
    description = "; ".join(
        f"{row.label} sends {human_bytes(row.bytes_up)}, receives {human_bytes(row.bytes_down)}" for row in rows
    )
    return Drawing(name, "Traffic per client over the whole run", description, figure, spots)


def byte_unit(most: float) -> tuple[float, str]:
    """The decimal unit for an axis that goes up to this many bytes."""
    return next((p, u) for p, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if most >= p or u == "B")


def limit_accuracy(set_limits: Callable[..., object], values: Sequence[float]) -> None:
    """Limits of an axis in per cent: around the values, never beyond 0 and 100."""
    low, high = (min(values), max(values)) if values else (0.0, 100.0)
    margin = max(0.06 * (high - low), (MIN_SPAN - (high - low)) / 2, 0.1)
    top = high + margin
    # A mark at 0 % or 100 % needs room to be drawn, but no tick beyond it.
    beyond = 0.03 * max(high - low, MIN_SPAN)
    set_limits(max(low - margin, -beyond), min(top, 100.0 + beyond))


def _name_rows(axes: "Axes", rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [wrapped(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
