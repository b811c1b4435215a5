"""Heat maps of a partition: number of examples by client and class, in the terminal, as PNG or as HTML."""

import base64
import html
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from spherefed.data.heterogeneity import Heterogeneity, heterogeneity
from spherefed.data.partition import Partition
from spherefed.errors import ConfigError

_STEPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five colours of viridis, dark to bright; colours in between are interpolated."""
_SHADES = " ░▒▓█"


def heterogeneity_lines(measures: Heterogeneity) -> list[str]:
    """The heterogeneity measures as text, one per line."""
    empty = f", {measures.num_empty} clients without examples" if measures.num_empty else ""
    return [
        f"mean Jensen–Shannon distance between clients: {measures.mean_js_distance:.3f} (0 equal, 1 disjoint)",
        f"effective classes per client: {measures.mean_effective_classes:.1f} on average",
        f"examples per client: {measures.min_size} to {measures.max_size}, median {measures.median_size:g}{empty}",
    ]


def terminal_heatmap(partition: Partition, *, width: int = 80, max_rows: int = 40, colour: bool = True) -> Text:
    """A header line, then one row per client with its number at the left, and one column per class.

    If there are more clients or classes than fit, neighbours are summed. The brightness of a cell is the square root of
    its count relative to the largest cell, so that small counts are visible. With colour, a line shows two rows;
    without (in a file or a plain terminal), one row in five shades.
    """
    per_line = 2 if colour else 1
    num_clients, num_classes = partition.label_counts.shape
    rows = _starts(num_clients, per_line * max_rows)
    numbers = [_span(first, stop - 1) for first, stop in pairwise([*rows[::per_line].tolist(), num_clients])]
    margin = max(map(len, numbers)) + 1
    columns = _starts(num_classes, max(width - margin, 1))
    counts = np.add.reduceat(np.add.reduceat(partition.label_counts, rows, axis=0), columns, axis=1)
    level = np.sqrt(counts / max(int(counts.max()), 1))
    summed = f", {columns[1]} per cell" if len(columns) < num_classes else ""
    header = f"rows: clients; columns: classes {_span(0, num_classes - 1)}{summed}; brightest: {counts.max()} examples"
    lines = [Text(header)]
    for number, top in zip(numbers, range(0, len(level), per_line), strict=True):
        lines.append(Text(f"{number:>{margin - 1}} ").append_text(_line(level[top : top + per_line], colour)))
    return Text("\n", no_wrap=True).join(lines)


def write_heatmap(partition: Partition, path: Path, *, title: str = "Examples per client and class") -> None:
    """Write the heat map as `.png`, or with the heterogeneity measures as a self-contained `.html` page."""
    match path.suffix:
        case ".png":
            path.write_bytes(_png(partition, title))
        case ".html":
            path.write_text(_page(partition, title), encoding="utf-8")
        case other:
            raise ConfigError(f"the heat map file must end in .png or .html, got {other!r} in {path}")


def _line(rows: "NDArray[np.float64]", colour: bool) -> Text:
    if not colour:
        return Text("".join(_SHADES[int(np.ceil(level * (len(_SHADES) - 1)))] for level in rows[0]))
    line = Text()
    for column in range(rows.shape[1]):
        # The upper half block shows two clients in one character: foreground above, background below.
        lower = f" on {_colour(rows[1, column])}" if len(rows) == 2 else ""
        line.append("▀", style=f"{_colour(rows[0, column])}{lower}")
    return line


def _png(partition: Partition, title: str) -> bytes:
    buffer = io.BytesIO()
    heatmap_figure(partition, title).savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def heatmap_figure(partition: Partition, title: str) -> Any:
    """The heat map as a matplotlib figure, with a colour scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients, classes = partition.label_counts.shape
    figure: Any = Figure(figsize=(min(4 + classes / 12, 16), min(2.5 + clients / 10, 14)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(partition.label_counts, aspect="auto", cmap="viridis", interpolation="nearest")
    axes.set(title=title, xlabel="class", ylabel="client")
    figure.colorbar(picture, label="examples")
    return figure


def _page(partition: Partition, title: str) -> str:
    picture = base64.b64encode(_png(partition, title)).decode("ascii")
    measures = "".join(f"<li>{html.escape(line)}</li>" for line in heterogeneity_lines(heterogeneity(partition)))
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
        f'<body><h1>{name}</h1><img alt="{name}" src="data:image/png;base64,{picture}">'
        f"<ul>{measures}</ul><p>Partition {partition.digest()}</p></body></html>\n"
    )


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _starts(size: int, limit: int) -> "NDArray[np.int64]":
    """The first index of each group of neighbours; groups are equally large, and there are at most `limit`."""
    return np.arange(0, size, -(-size // limit))


def _colour(level: float) -> str:
    position = float(level) * (len(_STEPS) - 1)
    index = min(int(position), len(_STEPS) - 2)
    mix = position - index
    red, green, blue = (round(a + (b - a) * mix) for a, b in zip(_STEPS[index], _STEPS[index + 1], strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
