"""Who holds what: the client × class counts of a partition in the terminal, as a picture or as a page."""

import base64
import html
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from spherefed.data.heterogeneity import Heterogeneity, heterogeneity
from spherefed.data.partition import Partition
from spherefed.errors import ConfigError

_STEPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five colours of viridis, dark to bright; between them is interpolated."""


def heterogeneity_lines(figures: Heterogeneity) -> list[str]:
    """The figures as text, one per line."""
    empty = f", {figures.num_empty} clients without examples" if figures.num_empty else ""
    return [
        f"mean Jensen–Shannon distance between clients: {figures.mean_js_distance:.3f} (0 equal, 1 disjoint)",
        f"effective classes per client: {figures.mean_effective_classes:.1f} on average",
        f"examples per client: {figures.min_size} to {figures.max_size}, median {figures.median_size:g}{empty}",
    ]


def terminal_heatmap(partition: Partition, *, width: int = 100, max_rows: int = 60) -> Text:
    """A row per client, a coloured cell per class, two clients per line; neighbours are added up where space is short.

    Brightness is the count relative to the largest cell, by its square root, so that small holdings can be seen.
    """
    counts = _pool(_pool(partition.label_counts, width, axis=1), 2 * max_rows, axis=0)
    level = np.sqrt(counts / max(int(counts.max()), 1))
    text = Text(no_wrap=True)
    for top in range(0, len(level), 2):
        for column in range(level.shape[1]):
            upper = _colour(level[top, column])
            # The upper half block shows two clients in one character: foreground above, background below.
            lower = f" on {_colour(level[top + 1, column])}" if top + 1 < len(level) else ""
            text.append("▀", style=f"{upper}{lower}")
        text.append("\n")
    return text


def write_heatmap(partition: Partition, path: Path, *, title: str = "Examples per client and class") -> None:
    """The heat map with the heterogeneity figures, as `.png` or as a self-contained `.html` page."""
    match path.suffix:
        case ".png":
            path.write_bytes(_png(partition, title))
        case ".html":
            path.write_text(_page(partition, title), encoding="utf-8")
        case other:
            raise ConfigError(f"a heat map is written as .png or .html, got {other!r} in {path}")


def _png(partition: Partition, title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients, classes = partition.label_counts.shape
    figure: Any = Figure(figsize=(min(4 + classes / 12, 16), min(2.5 + clients / 10, 14)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(partition.label_counts, aspect="auto", cmap="viridis", interpolation="nearest")
    axes.set(title=title, xlabel="class", ylabel="client")
    figure.colorbar(picture, label="examples")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def _page(partition: Partition, title: str) -> str:
    picture = base64.b64encode(_png(partition, title)).decode("ascii")
    figures = "".join(f"<li>{html.escape(line)}</li>" for line in heterogeneity_lines(heterogeneity(partition)))
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>'
        f'<body><h1>{name}</h1><img alt="{name}" src="data:image/png;base64,{picture}">'
        f"<ul>{figures}</ul><p>Partition {partition.digest()}</p></body></html>\n"
    )


def _pool(counts: "NDArray[np.int64]", limit: int, axis: int) -> "NDArray[np.int64]":
    """Sums of equally many neighbours, so that at most `limit` remain."""
    size = counts.shape[axis]
    group = -(-size // limit)
    return np.add.reduceat(counts, np.arange(0, size, group), axis=axis)


def _colour(level: float) -> str:
    position = float(level) * (len(_STEPS) - 1)
    index = min(int(position), len(_STEPS) - 2)
    mix = position - index
    red, green, blue = (round(a + (b - a) * mix) for a, b in zip(_STEPS[index], _STEPS[index + 1], strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
