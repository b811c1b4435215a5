"""How figures are made: matplotlib settings, colours of a light and a dark page, SVG and PDF, values to hover over.

A `Drawing` is a matplotlib figure with a name, a title and a description. On a page its colours are CSS variables, so
that they follow the theme; in files they are fixed. Equal input gives equal text: there are no dates and no random ids.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from pathlib import Path
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 4.9
"""Inches: narrow, so that text is readable when a phone shows the whole figure."""

THEME = {
    "ink": ("#2b2e33", "#e4e2dd"),
    "soft": ("#5f646c", "#a9adb5"),
    "grid": ("#e3e1da", "#34383e"),
    "axis": ("#8a8e95", "#7b8088"),
    "surface": ("#fefefd", "#1d2024"),
    "heat": ("#0a4070", "#4aa3df"),
    "on-pale": ("#000001", "#fffffe"),
    "on-heat": ("#ffffff", "#000002"),
    "series-0": ("#0072b2", "#5cb3ea"),
    "series-1": ("#c65102", "#f58f4c"),
    "series-2": ("#00805c", "#3cc99c"),
    "series-3": ("#a8457f", "#e79cc6"),
    "series-4": ("#8a6a00", "#e3bb44"),
    "series-5": ("#5b53b5", "#aaa3f2"),
    "series-6": ("#565b62", "#b9bcc2"),
}
"""Name → colour on a light and on a dark page. Every colour differs from the surface by a contrast of at least 3."""

NUM_SERIES = 7
LINES = ("-", "--", ":", "-.")
MAX_POINTS = 60
"""Points of one curve that show their value: more would make the page large."""


def colour(name: str) -> str:
    """A colour of the light theme, by its name."""
    return THEME[name][0]


def series(position: int) -> str:
    """The colour of the group at this position; after the last colour they repeat with another line."""
    return colour(f"series-{position % NUM_SERIES}")


def line_style(position: int) -> str:
    """The line of the group at this position."""
    return LINES[position // NUM_SERIES % len(LINES)]


def theme_css() -> str:
    """The colours as CSS variables: light, dark, and light again in print."""

    def block(index: int) -> str:
        return " ".join(f"--{name}: {pair[index]};" for name, pair in THEME.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {block(1)} }} }}"
    return f":root {{ {block(0)} }}\n{dark}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a figure that shows its value: a point, or an area between two corners, in data coordinates."""

    axes: "Axes"
    x: float
    y: float
    text: str
    corner: tuple[float, float] | None = None
    """The opposite corner of an area."""


@dataclass(frozen=True, eq=False, slots=True)
class Drawing:
    """A figure with everything that a page or a file needs."""

    name: str
    """Ids of the SVG and the name of a file start with it."""
    title: str
    description: str
    """For readers who do not see the figure."""
    figure: "Figure"
    spots: Sequence[Spot] = field(default=())

    def svg(self, *, themed: bool = True) -> str:
        """SVG text. Themed: for a page, in colours of its CSS variables and with values to hover over."""
        from matplotlib import rc_context

        self._lay_out()
        buffer = io.StringIO()
        with rc_context({**STYLE, "svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format="svg", transparent=True, dpi=144, metadata={"Date": None})
        text = buffer.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
        used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
        text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        if themed:
            text = _themed(_compact(text)).replace("</svg>", f"{self._hover_marks()}</svg>")
        box = re.search(r'viewBox="[^"]*"', text)
        assert box is not None, "matplotlib writes a viewBox"
        start_tag = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-description">\n'
            f'<title id="{self.name}-title">{escape(self.title)}</title>\n'
            f'<desc id="{self.name}-description">{escape(self.description)}</desc>'
        )
        return start_tag + text[text.index(">") + 1 :]

    def write(self, folder: Path) -> list[Path]:
        """Write NAME.svg and NAME.pdf in the colours of the light theme."""
        from matplotlib import rc_context

        self._lay_out()
        paths = [folder / f"{self.name}.svg", folder / f"{self.name}.pdf"]
        paths[0].write_text('<?xml version="1.0" encoding="utf-8"?>\n' + self.svg(themed=False), encoding="utf-8")
        with rc_context({**STYLE, "pdf.fonttype": 42}):
            self.figure.savefig(paths[1], format="pdf", metadata={"CreationDate": None, "Title": self.title})
        return paths

    def _lay_out(self) -> None:
        """Lay out once: a second time would move everything a little."""
        from matplotlib import rc_context

        if self.figure.get_layout_engine() is not None:
            with rc_context(STYLE):
                self.figure.draw_without_rendering()
            self.figure.set_layout_engine("none")

    def _hover_marks(self) -> str:
        """Invisible circles and rectangles, each with its value as a title."""
        height = self.figure.get_figheight() * 72
        marks = []
        for spot in self.spots:
            x, y = spot.axes.transData.transform((spot.x, spot.y))
            title = f"<title>{escape(spot.text)}</title>"
            if spot.corner is None:
                marks.append(f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="5">{title}</circle>')
                continue
            right, top = spot.axes.transData.transform(spot.corner)
            left, bottom, wide, high = min(x, right), max(y, top), abs(right - x), abs(top - y)
            size = f'width="{wide:.1f}" height="{high:.1f}"'
            marks.append(f'<rect x="{left:.1f}" y="{height - bottom:.1f}" {size}>{title}</rect>')
        return f'<g class="spots">{"".join(marks)}</g>' if marks else ""


STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": colour("ink"),
    "text.parse_math": False,
    "axes.labelcolor": colour("soft"),
    "axes.edgecolor": colour("axis"),
    "axes.linewidth": 0.8,
    "axes.titlesize": 8.5,
    "xtick.color": colour("axis"),
    "ytick.color": colour("axis"),
    "xtick.labelcolor": colour("ink"),
    "ytick.labelcolor": colour("ink"),
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": colour("grid"),
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw with the settings in STYLE, then restore the caller's matplotlib settings."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes."""
    figure = empty_figure(width, height)
    return figure, figure.add_subplot()


def empty_figure(width: float, height: float) -> "Figure":
    """A figure of this size in inches whose parts are laid out automatically."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), dpi=72, layout=ConstrainedLayoutEngine(wspace=0.08, hspace=0.08))


def place_legend(axes: "Axes", handles: Sequence[Any]) -> None:
    """A legend above the axes: one column, two if there are many names and all are short."""
    short = max((len(handle.get_label()) for handle in handles), default=0) <= 24
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.02),
        ncols=2 if short and len(handles) > 2 else 1,
        borderaxespad=0,
        handlelength=1.6,
        labelspacing=0.25,
        columnspacing=1.2,
    )


def whole_rounds(axes: "Axes") -> None:
    """Whole numbers on the axis of rounds, which starts at 0."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("round")


def logarithmic(axes: "Axes") -> None:
    """A logarithmic axis with plain numbers, or powers of ten if they are very large or small."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    narrow = high / low < 30
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()


def _power_text(value: float) -> str:
    """A number as text.

    >>> _power_text(0.01), _power_text(1e-7), _power_text(2e5)
    ('0.01', '10⁻⁷', '2·10⁵')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if digits == "1" else f"{digits}·10{power}"


def write_right_of(axes: "Axes", y: float, text: str) -> None:
    """Write text to the right of the axes, at height y. The offset is in points, so that the layout leaves room."""
    axes.annotate(
        text, (1, y), xytext=(6, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center",
        fontsize=8, annotation_clip=False,
    )  # fmt: skip


def wrapped(label: str) -> str:
    """A label in at most three short lines: a long line would leave no room for the plot."""
    return "\n".join(wrap(label, 22, max_lines=3, placeholder=" …"))


def short(label: str) -> str:
    """A label for a legend."""
    return shorten(label, 46, placeholder=" …")


def thinned(number: int) -> list[int]:
    """At most MAX_POINTS positions of a curve of this length, the first and the last among them."""
    if number <= MAX_POINTS:
        return list(range(number))
    return sorted({round(i * (number - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})


def _themed(text: str) -> str:
    """Replace the colours of the light theme by CSS variables."""
    for name, (light, _) in THEME.items():
        text = text.replace(light, f"var(--{name})")
    return text


def _compact(text: str) -> str:
    """Coordinates with two digits after the point, and no line breaks between elements."""
    attributes = re.compile(r' (?:d|x|y|x1|x2|y1|y2|points|transform|clip-path|width|height)="[^"]*"')
    text = attributes.sub(lambda found: re.sub(r"(\d+\.\d{2})\d+", r"\1", found[0]).replace("\n", " "), text)
    return re.sub(r">\s+<", "><", text)
