"""The figure of an item, from its JSON alone: equal JSON, equal SVG text.

Tables become dots with intervals, one panel per column. Figures of the paper over rounds become curves, maps of
features points. What is computed by formula becomes bars.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
LINES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "spherefed",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LABELS = {"accuracy": "accuracy, %", "cosine": "cosine (Eq. 2)", "norm_difference": "norm difference (Eq. 3)"}
OVER_ROUNDS = ("fig2", "fig4")
"""Items that the paper shows as curves."""
MAPS_IN_A_LINE = 3
PNG_DPI = 110
Plain = Mapping[str, Any]


def item_figure(found: Plain, format_: str = "svg") -> bytes | None:
    """The figure in this format; None if there is nothing to draw yet."""
    if "computed" in found:
        return _drawn(lambda figure: _draw_bars(figure, found["computed"]["bars"]), (7.0, 3.4), format_)
    if found["item"] in OVER_ROUNDS:
        panels = _curve_panels(found["curves"])
        size = (4.2 * len(panels), 3.4)
        return _drawn(lambda figure: _draw_curves(figure, panels), size, format_) if panels else None
    if found["item"] == "rounds" and (longest := long_columns(found)):
        return _drawn(lambda figure: _draw_rounds(figure, found, longest), (3.6 * len(longest), 3.6), format_)
    if maps := found.get("maps"):
        size = (3.2 * min(len(maps), MAPS_IN_A_LINE), 3.6 * -(-len(maps) // MAPS_IN_A_LINE))
        return _drawn(lambda figure: _draw_maps(figure, maps), size, format_)
    columns = _dot_panels(found["cells"])
    if not columns:
        return None
    size = (4.2 * len(columns), 1.1 + 0.21 * max(map(len, columns.values())))
    return _drawn(lambda figure: _draw_dots(figure, columns, found["unit"]), size, format_)


def _drawn(draw: Any, size: tuple[float, float], format_: str) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.BytesIO()
        metadata = {"Date": None} if format_ == "svg" else {"Software": None}
        figure.savefig(buffer, format=format_, metadata=metadata, dpi=PNG_DPI)
    return buffer.getvalue()


def _dot_panels(cells: Sequence[Plain]) -> dict[str, list[Plain]]:
    """Column → its cells that have a number; the axis is one of accuracy, so times are left out."""
    panels: dict[str, list[Plain]] = {}
    for cell in cells:
        if cell["ours"] is not None and cell["metric"] != "head_seconds":
            panels.setdefault(cell["column"], []).append(cell)
    return panels


def _draw_dots(figure: "Figure", columns: Mapping[str, Sequence[Plain]], unit: str) -> None:
    first: list[str] = []
    for position, (column, cells) in enumerate(columns.items(), start=1):
        axes = figure.add_subplot(1, len(columns), position)
        for index, cell in enumerate(cells):
            ours, colour = cell["ours"], COLOURS[1] if _is_ours(cell["row"]) else COLOURS[0]
            error = None if ours["half_width"] is None else [ours["half_width"]]
            axes.errorbar([ours["mean"]], [index], xerr=error, fmt="o", ms=4, lw=1.3, capsize=2, color=colour)
        rows = [cell["row"] for cell in cells]
        repeated = position > 1 and rows == first
        first = rows if position == 1 else first
        axes.set_yticks(range(len(cells)), [""] * len(rows) if repeated else rows)
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.grid(axis="x", lw=0.4, color="#cccccc")
        axes.set_title(column, loc="left")
        measure = "standard deviation" if cells[0]["metric"] == "personal_std" else "accuracy"
        axes.set_xlabel(f"{measure}, {unit}" if unit else "")


def _is_ours(row: str) -> bool:
    """Whether a row is SphereFed beside other methods; Table 8 calls it "Ours" as the paper does."""
    return "SphereFed" in row or row.startswith("Ours")


def _curve_panels(curves: Sequence[Plain]) -> dict[tuple[str, str], list[Plain]]:
    """(measure, column) → curves; items with several measures have one panel for each, with columns as lines."""
    by_measure = len({curve["measure"] for curve in curves}) > 1
    panels: dict[tuple[str, str], list[Plain]] = {}
    for curve in curves:
        panel = "" if by_measure else curve["row"]
        panels.setdefault((curve["measure"], panel), []).append(curve)
    return panels


def _draw_curves(figure: "Figure", panels: Mapping[tuple[str, str], Sequence[Plain]]) -> None:
    """One panel beside the other; panels of the same measure have the same scale."""
    first: dict[str, Axes] = {}
    for position, ((measure, title), curves) in enumerate(panels.items(), start=1):
        axes: Axes = figure.add_subplot(1, len(panels), position, sharey=first.get(measure))
        first.setdefault(measure, axes)
        for index, curve in enumerate(curves):
            style, colour = LINES[index // len(COLOURS) % len(LINES)], COLOURS[index % len(COLOURS)]
            axes.plot(curve["rounds"], curve["means"], style, color=colour, label=curve["column"], lw=1.5)
        axes.set_title(title, loc="left")
        axes.set_xlabel("round")
        axes.set_ylabel(LABELS[measure])
        axes.legend(frameon=False, fontsize=7)


def long_columns(found: Plain) -> list[str]:
    """The columns with the larger number of rounds, at the rates tuned for them, that were run, in their order."""
    longest = max((curve["rounds"][-1] for curve in found["curves"]), default=0)
    at_tuned_rates = f"({longest} rounds)"
    wanted = [curve["column"] for curve in found["curves"] if curve["column"].endswith(at_tuned_rates)]
    return list(dict.fromkeys(wanted))


def _draw_rounds(figure: "Figure", found: Plain, columns: Sequence[str]) -> None:
    """Accuracy over rounds as trained, and behind the last round that after calibration with its interval; all panels
    have the same scale."""
    rows = dict.fromkeys(cell["row"] for cell in found["cells"])
    # FedAvg and SphereFed in blue and red, what belongs to them in similar colours.
    colours = dict(zip(rows, (COLOURS[i] for i in (0, 2, 4, 5, 1)), strict=True))
    first: Axes | None = None
    for position, column in enumerate(columns, start=1):
        axes: Axes = figure.add_subplot(1, len(columns), position, sharey=first)
        first = first or axes
        curves = {curve["row"]: curve for curve in found["curves"] if curve["column"] == column}
        cells = [cell for cell in found["cells"] if cell["column"] == column and cell["ours"] is not None]
        end = max(curve["rounds"][-1] for curve in curves.values())
        for row, curve in curves.items():
            axes.plot(curve["rounds"], curve["means"], color=colours[row], lw=1.5, label=row)
        calibrated = [cell for cell in cells if cell["metric"] == "calibrated"]
        for index, cell in enumerate(calibrated, start=1):
            x, half = end * (1 + 0.06 * index), cell["ours"]["half_width"]
            axes.errorbar(
                [x], [cell["ours"]["mean"]], yerr=None if half is None else [half], fmt="o", ms=4, lw=1.3, capsize=2,
                color=colours[cell["row"]], label=cell["row"],
            )  # fmt: skip
        axes.set_title(column, loc="left")
        axes.set_xticks(range(0, end + 1, max(1, end // 6)))
        axes.set_xlabel("round")
        axes.set_ylabel(f"accuracy, {found['unit']}" if position == 1 else "")
        axes.grid(axis="y", lw=0.4, color="#cccccc")
        if position == 1:
            axes.legend(frameon=False, fontsize=7, loc="lower right")


def _draw_maps(figure: "Figure", maps: Mapping[str, Plain]) -> None:
    """One panel per method: colours are clients, shapes are classes."""
    lines = -(-len(maps) // MAPS_IN_A_LINE)
    for position, (title, found) in enumerate(maps.items(), start=1):
        axes: Axes = figure.add_subplot(lines, min(len(maps), MAPS_IN_A_LINE), position)
        count = len(found["labels"])
        for index, client in enumerate(found["clients"]):
            points = found["points"][index * count : (index + 1) * count]
            for marker, number in zip("ox", sorted(set(found["labels"])), strict=False):
                chosen = [p for p, label in zip(points, found["labels"], strict=True) if label == number]
                label = f"class {number}" + ("" if len(found["clients"]) == 1 else f", client {client}")
                x, y = zip(*chosen, strict=True)
                axes.plot(x, y, marker, ms=3.5, mew=0.9, mfc="none", color=COLOURS[index], label=label)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(title, loc="left")
        axes.legend(frameon=False, fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=2)


def _draw_bars(figure: "Figure", bars: Plain) -> None:
    """Horizontal ranges, and the paper's number as a mark."""
    axes = figure.add_subplot()
    rows = bars["rows"]
    for index, row in enumerate(rows):
        axes.plot([row["low"], row["high"]], [index, index], lw=7, color=COLOURS[0], solid_capstyle="butt")
        axes.plot([row["low"]], [index], "|", ms=8, color=COLOURS[0])
        if row["paper"] is not None:
            axes.plot([row["paper"]], [index], "D", ms=4, color=COLOURS[1])
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{bars['quantity']} (diamonds: paper)")
    if bars["log"]:
        axes.set_xscale("log")
