"""Heat maps with their colour scales: examples by client and class, and one value by method and class.

The colour is one hue whose opacity is the level, so that a map reads on a light and on a dark page.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spherefed.report.drawing import (
    WIDTH,
    Drawing,
    Spot,
    colour,
    empty_figure,
    new_figure,
    styled,
    wrapped,
    write_right_of,
)
from spherefed.report.run_files import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INVERSE = 0.7
"""From this level on, text in a cell has the inverse colour: the contrast is at least 4.5 on both sides."""
MAX_CELLS = 800
"""Up to this number, cells are separate shapes with values; beyond, the map is one picture."""
MAX_CLIENT_ROWS = 60
"""More clients are sorted by their most frequent class, because their order says nothing, and small counts are drawn
stronger: the opacity is the square root of the share."""
MAX_STRIPS = 100
"""Parts of a large map that show values."""

Counts = NDArray[Any]


@styled
def partition_map(partition: Partition, name: str, title: str) -> Drawing:
    """Number of examples by client and class, with the numbers in the cells if they fit."""
    counts = np.array(partition.label_counts)
    num_clients, num_classes = counts.shape
    order = np.arange(num_clients)
    if num_clients > MAX_CLIENT_ROWS:
        order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    counts = counts[order]
    figure, axes = new_figure(WIDTH, min(max(1.9, 1.1 + 0.235 * num_clients), 5.2))
    top = max(1, int(counts.max()))
    power = 1.0 if num_clients <= MAX_CLIENT_ROWS else 0.5
    _paint(axes, (counts / top) ** power)
    axes.set_xlabel("class")
    axes.set_ylabel("client" if num_clients <= MAX_CLIENT_ROWS else "client, sorted by most frequent class")
    if num_clients <= 20 and num_classes <= 12:
        axes.set_xticks(range(num_classes))
        axes.set_yticks(range(num_clients))
        _write_counts(axes, counts, top)
    _colour_scale(figure, axes, top, "examples", power=power)
    spots = _count_spots(axes, counts, order)
    sizes = counts.sum(axis=1)
    description = (
        f"{num_clients} clients, {num_classes} classes; a client holds {sizes.min()} to {sizes.max()} examples"
    )
    return Drawing(name, title, description, figure, spots)


@styled
def partition_maps(partitions: Sequence[tuple[str, Partition]], name: str, title: str) -> Drawing:
    """Several small maps without numbers, each with its caption; they share one colour scale."""
    columns = 3
    height = -(-len(partitions) // columns)
    figure = empty_figure(WIDTH, 1.5 * height + 0.5)
    maps = [np.array(partition.label_counts) for _, partition in partitions]
    top = max([1, *(int(counts.max()) for counts in maps)])
    every, spots = [], []
    for number, ((caption, _), counts) in enumerate(zip(partitions, maps, strict=True), start=1):
        axes = figure.add_subplot(height, columns, number)
        _paint(axes, counts / top, as_picture=True)
        axes.set_title(caption, fontsize=8)
        for spine in axes.spines.values():
            spine.set(visible=True, color=colour("grid"), linewidth=0.8)
        axes.set_xticks([])
        axes.set_yticks([])
        every.append(axes)
        sizes = counts.sum(axis=1)
        text = f"{caption}: {sizes.min()} to {sizes.max()} examples per client"
        spots.append(Spot(axes, -0.5, -0.5, text, (counts.shape[1] - 0.5, counts.shape[0] - 0.5)))
    _colour_scale(figure, every, top, "examples; rows are clients, columns are classes")
    description = "rows are clients, columns are classes: " + ", ".join(c for c, _ in partitions)
    return Drawing(name, title, description, figure, spots)


@styled
def class_map(values: Sequence[tuple[str, Counts]], classes: Sequence[str], name: str, title: str) -> Drawing:
    """Accuracy of every class, one row per method; the scale goes from the lowest value to 100 %."""
    levels = np.array([row for _, row in values])
    low = float(np.floor(10 * np.nanmin(levels)) / 10) if np.isfinite(levels).any() else 0.0
    low = min(low, 0.9)
    figure, axes = new_figure(WIDTH, 1.15 + 0.34 * len(values))
    _paint(axes, np.nan_to_num((levels - low) / (1 - low)))
    axes.set_yticks(range(len(values)), [wrapped(label) for label, _ in values])
    axes.set_xlabel("class")
    if len(classes) <= 12:
        axes.set_xticks(range(len(classes)), classes if max(map(len, classes)) <= 3 else map(str, range(len(classes))))
    spots = []
    for k, (label, row) in enumerate(values):
        for c, value in enumerate(row):
            if not np.isfinite(value):
                continue
            if len(classes) <= 12:
                _write_cell(axes, c, k, f"{100 * value:.0f}", (value - low) / (1 - low))
            text = f"{label}, class {classes[c]}: {100 * value:.1f} %"
            spots.append(Spot(axes, c - 0.5, k - 0.5, text, (c + 0.5, k + 0.5)))
    _colour_scale(figure, axes, 100, "accuracy, %", low=100 * low)
    description = "; ".join(
        f"{label}: {100 * np.nanmin(row):.1f} to {100 * np.nanmax(row):.1f} per cent"
        for label, row in values
        if np.isfinite(row).any()
    )
    return Drawing(name, title, description, figure, spots)


def _paint(axes: "Axes", levels: Counts, *, as_picture: bool = False) -> None:
    """Levels from 0 to 1 as cells."""
    from matplotlib.colors import to_rgb

    num_rows, num_columns = levels.shape
    if as_picture or levels.size > MAX_CELLS:
        picture = np.empty((num_rows, num_columns, 4))
        picture[..., :3], picture[..., 3] = to_rgb(PICTURE), levels
        axes.imshow(picture, aspect="auto", interpolation="none", zorder=1)
    else:
        axes.pcolormesh(
            np.arange(num_columns + 1) - 0.5,
            np.arange(num_rows + 1) - 0.5,
            levels,
            cmap=_one_hue(),
            vmin=0,
            vmax=1,
            edgecolors="none",
            zorder=1,
        )
    axes.set_xlim(-0.5, num_columns - 0.5)
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


PICTURE = "#2f7fbf"
"""The hue of maps that are pictures, which cannot follow the theme: its contrast is at least 3 on both pages."""


def _one_hue() -> Any:
    """From transparent to the full hue."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("heat", [to_rgba(colour("heat"), 0.0), to_rgba(colour("heat"), 1.0)])


def _colour_scale(figure: "Figure", axes: Any, top: float, label: str, *, low: float = 0.0, power: float = 1.0) -> None:
    """What the colours mean, below the map; the opacity is this power of the share of the largest value."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba

    hue = colour("heat") if _has_shapes(axes) else PICTURE
    steps = LinearSegmentedColormap.from_list("scale", [to_rgba(hue, 0.0), to_rgba(hue, 1.0)], N=24)
    mappable = ScalarMappable(PowerNorm(power, low, top), steps)
    bar = figure.colorbar(mappable, ax=axes, location="bottom", aspect=42, pad=0.02, fraction=0.05, shrink=0.7)
    bar.set_label(label, fontsize=8)
    bar.outline.set(edgecolor=colour("axis"), linewidth=0.6)
    bar.ax.tick_params(labelsize=7.5, length=2)


def _has_shapes(axes: Any) -> bool:
    return not isinstance(axes, list) and not axes.images


def _write_counts(axes: "Axes", counts: Counts, top: int) -> None:
    for k, row in enumerate(counts):
        for c, number in enumerate(row):
            if number:
                _write_cell(axes, c, k, str(number), number / top)
        write_right_of(axes, k, str(int(row.sum())))
    write_right_of(axes, -0.75, "all")


def _write_cell(axes: "Axes", column: int, row: int, text: str, level: float) -> None:
    ink = colour("on-heat" if level > INVERSE else "on-pale")
    axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink, zorder=3)


def _count_spots(axes: "Axes", counts: Counts, order: Counts) -> list[Spot]:
    """Values of cells; of rows if there are many cells; of groups of rows if there are many clients."""
    num_clients, num_classes = counts.shape
    if counts.size <= MAX_CELLS:
        return [
            Spot(axes, c - 0.5, k - 0.5, f"client {order[k]}, class {c}: {counts[k, c]}", (c + 0.5, k + 0.5))
            for k in range(num_clients)
            for c in range(num_classes)
        ]
    step = -(-num_clients // MAX_STRIPS)
    spots = []
    for first in range(0, num_clients, step):
        rows = counts[first : first + step]
        who = f"client {order[first]}" if step == 1 else f"{len(rows)} clients, the first is client {order[first]}"
        most = int(rows.sum(axis=0).argmax())
        share = rows[:, most].sum() / max(rows.sum(), 1)
        text = f"{who}: {_range_text(rows.sum(axis=1))} examples, {100 * share:.0f} % of class {most}"
        spots.append(Spot(axes, -0.5, first - 0.5, text, (num_classes - 0.5, first + len(rows) - 0.5)))
    return spots


def _range_text(sizes: Counts) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return str(low) if low == high else f"{low} to {high}"
