"""The figures of a report as SVG text that can stand inside a page.

Equal input gives equal text: no dates, no random ids. Ids are prefixed with the figure's name, so that several figures
share a page; each has a title and a description for those who hear it. Words stay text and take the page's font.
"""

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any, ParamSpec

from spherefed.report.reading import CALIBRATED, TRAINED, Partition
from spherefed.report.summary import GLOBAL_TEST, Estimate, Group, Row, estimate
from spherefed.report.tables import human_bytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

# Okabe and Ito's colours, told apart by colour-blind readers; blue and vermilion first.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
_LINES = ("-", "--", ":", "-.")
_WIDTH = 6.2  # inches: narrow enough that a phone shows the whole figure with words one can read
_INK, _FAINT = "#333333", "#d9d9d9"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
}


def _styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Draw under the figures' own settings, whatever the caller's are, and put those back."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


@_styled
def accuracy_per_round(groups: Sequence[Group], rows: Sequence[Row], accuracy: str = GLOBAL_TEST) -> str:
    """Mean over seeds at the evaluated rounds with its 95 % band; what calibration adds at the end is a diamond."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(_WIDTH, 3.6)
    last = max(run.rounds for group in groups for run in group.runs)
    handles = []
    trained = {row.group for row in rows if row.stage == TRAINED}  # a shared training has one row and one curve
    for position, group in ((p, groups[p]) for p in sorted(trained)):
        colour = _COLOURS[position % len(_COLOURS)]
        curve = _curve(group, accuracy)
        xs, means = [x for x, _ in curve], [100 * value.mean for _, value in curve]
        halves = [100 * (value.half_width or 0.0) for _, value in curve]
        style = _LINES[position // len(_COLOURS) % len(_LINES)]
        handles += axes.plot(xs, means, style, color=colour, lw=1.8, label=_short(group.labels[TRAINED]), zorder=3)
        if len(curve) == 1:
            handles[-1].set_marker("o")
        lower = [m - h for m, h in zip(means, halves, strict=True)]
        upper = [m + h for m, h in zip(means, halves, strict=True)]
        axes.fill_between(xs, lower, upper, color=colour, alpha=0.15, lw=0, zorder=2)
    calibrated = [row for row in rows if row.stage == CALIBRATED]
    for place, row in enumerate(calibrated, start=1):
        # Beside the last round, not on it: calibration is no round.
        x = groups[row.group].runs[0].rounds + last * 0.025 * place
        handles.append(_point(axes, x, row.accuracy, _COLOURS[row.group % len(_COLOURS)], _short(row.label)))
    axes.set_xlim(0, last * (1 + 0.025 * (len(calibrated) + 1)))
    ticks = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(0, last)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y", color=_FAINT, lw=0.6)
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        ncols=2,
        frameon=False,
        borderaxespad=0,
        fontsize=8,
    )
    said = "; ".join(f"{row.label} ends at {percent(row.accuracy)} per cent" for row in rows)
    return _svg(figure, "rounds", "Accuracy per round", said)


@_styled
def final_accuracy(rows: Sequence[Row]) -> str:
    """Every seed a dot, the mean and its 95 % interval above them; the dashed line is the baseline's mean."""
    figure, axes = _figure(_WIDTH, 0.9 + 0.52 * len(rows))
    axes.axvline(100 * rows[0].accuracy.mean, color="#888888", lw=0.8, ls="--", zorder=1)
    for y, row in enumerate(rows):
        colour = _COLOURS[row.group % len(_COLOURS)]
        seeds = [100 * value for value in row.accuracies]
        axes.plot(seeds, [y + 0.2] * len(seeds), "o", ms=4, color=colour, alpha=0.55, mec="none", zorder=2)
        mean, half = 100 * row.accuracy.mean, 100 * (row.accuracy.half_width or 0.0)
        face = colour if row.stage == CALIBRATED else "white"
        axes.errorbar(
            mean, y - 0.1, xerr=half, fmt="D" if row.stage == CALIBRATED else "o", ms=6, mfc=face, mec=colour, mew=1.5,
            ecolor=colour, elinewidth=1.6, capsize=3, zorder=3,
        )  # fmt: skip
        _beside(axes, y, percent(row.accuracy))
    _name_rows(axes, rows)
    axes.set_xlabel("accuracy, %")
    axes.grid(axis="x", color=_FAINT, lw=0.6)
    said = "; ".join(f"{row.label} {percent(row.accuracy)} per cent" for row in rows)
    return _svg(figure, "final", "Final accuracy by method, every seed shown", said)


@_styled
def traffic(rows: Sequence[Row]) -> str:
    """Bytes that a client sends and receives over the whole run, mean over clients and seeds."""
    figure, axes = _figure(_WIDTH, 1.1 + 0.52 * len(rows))
    most = max([1.0, *(max(row.bytes_up, row.bytes_down) for row in rows)])
    power, unit = next((p, u) for p, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if most >= p)
    for y, row in enumerate(rows):
        for offset, number, face, what in (
            (-0.17, row.bytes_up, "#4c6a85", "sent"),
            (0.17, row.bytes_down, "#b9c7d4", "received"),
        ):
            axes.barh(y + offset, number / power, height=0.3, color=face, label=what if y == 0 else None)
            axes.text(number / power + most / power * 0.01, y + offset, human_bytes(number), va="center", fontsize=7.5)
    _name_rows(axes, rows)
    axes.set_xlim(0, most / power * 1.12)
    axes.set_xlabel(f"{unit} per client")
    axes.grid(axis="x", color=_FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, frameon=False, borderaxespad=0, fontsize=8)
    said = "; ".join(
        f"{row.label} sends {human_bytes(row.bytes_up)}, receives {human_bytes(row.bytes_down)}" for row in rows
    )
    return _svg(figure, "traffic", "Traffic per client over the whole run", said)


@_styled
def partition_map(partition: Partition, name: str, title: str) -> str:
    """Examples by client and class; the numbers are written where they fit."""
    counts = partition.label_counts
    num_clients, num_classes = len(counts), len(counts[0])
    figure, axes = _figure(_WIDTH, min(max(2.0, 1.0 + 0.27 * num_clients), 7.0))
    _paint(axes, counts)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    top = max([1, *(max(row) for row in counts)])
    if num_clients <= 25 and num_classes <= 20:
        axes.set_xticks(range(num_classes))
        axes.set_yticks(range(num_clients))
        for k, row in enumerate(counts):
            for c, number in enumerate(row):
                if number:
                    ink = "white" if number > 0.68 * top else _INK
                    axes.text(c, k, str(number), ha="center", va="center", fontsize=8, color=ink)
            _beside(axes, k, str(sum(row)))
        _beside(axes, -0.75, "all")
    sizes = [sum(row) for row in counts]
    said = f"{num_clients} clients, {num_classes} classes; a client holds {min(sizes)} to {max(sizes)} examples"
    return _svg(figure, name, title, said)


@_styled
def partition_maps(partitions: Sequence[tuple[str, Partition]], name: str, title: str) -> str:
    """Several partitions, small and without numbers, each under its caption."""
    columns = 4
    height = -(-len(partitions) // columns)
    figure = _empty(_WIDTH, 1.75 * height)
    for place, (caption, partition) in enumerate(partitions, start=1):
        axes = figure.add_subplot(height, columns, place)
        _paint(axes, partition.label_counts)
        axes.set_title(caption, fontsize=8)
        for spine in axes.spines.values():
            spine.set(visible=True, color="#bbbbbb", linewidth=0.6)
        axes.set_xticks([])
        axes.set_yticks([])
    return _svg(figure, name, title, "clients downwards, classes across: " + ", ".join(c for c, _ in partitions))


def _curve(group: Group, accuracy: str) -> list[tuple[int, Estimate]]:
    """Rounds done → accuracy, at the rounds that every seed evaluated; the trained model is the last point."""
    curves = []
    for run in group.runs:
        curve = {done + 1: values[accuracy] for done, values in run.evaluated.items() if accuracy in values}
        curves.append(curve | {run.rounds: run.stages[TRAINED].accuracy[accuracy]})
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [(x, estimate([curve[x] for curve in curves])) for x in shared]


def _point(axes: "Axes", x: float, value: Estimate, colour: str, label: str) -> Any:
    half = 100 * (value.half_width or 0.0)
    return axes.errorbar(
        x, 100 * value.mean, yerr=half, fmt="D", ms=6, color=colour, elinewidth=1.4, capsize=2.5, label=label, zorder=4
    )


def _name_rows(axes: "Axes", rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [_wrapped(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _beside(axes: "Axes", y: float, text: str) -> None:
    """Write to the right of the axes, level with y; the distance is in points, so that the layout can make room."""
    axes.annotate(
        text, (1, y), xytext=(6, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center",
        fontsize=8, annotation_clip=False,
    )  # fmt: skip


def _wrapped(label: str) -> str:
    """A label on at most three short lines: beside a long one no room would be left to draw."""
    return "\n".join(wrap(label, 26, max_lines=3, placeholder=" …"))


def _short(label: str) -> str:
    return shorten(label, 52, placeholder=" …")


def _paint(axes: "Axes", counts: Sequence[Sequence[int]]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    blues = LinearSegmentedColormap.from_list("counts", ["#ffffff", "#9dc3e0", "#0b4f85"])
    num_cells = len(counts) * len(counts[0])
    axes.pcolormesh(
        [c - 0.5 for c in range(len(counts[0]) + 1)],
        [k - 0.5 for k in range(len(counts) + 1)],
        counts,
        cmap=blues,
        vmin=0,
        vmax=max([1, *map(max, counts)]),
        edgecolors="#e8e8e8" if num_cells <= 500 else "none",
        linewidth=0.5,
        rasterized=num_cells > 2000,
    )
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    figure = _empty(width, height)
    return figure, figure.add_subplot()


def _empty(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.08, hspace=0.08))


def _svg(figure: "Figure", name: str, title: str, description: str) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, dpi=150, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None, "matplotlib writes a viewBox"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
        f'aria-labelledby="{name}-title {name}-said">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-said">{escape(description)}</desc>'
    )
    return opening + text[text.index(">") + 1 :]
