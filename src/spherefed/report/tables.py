"""The rows of a summary as text, formatted for a terminal or as Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spherefed.report.summary import ACCURACY, Estimate, Row, Summary

if TYPE_CHECKING:
    from rich.table import Table

CAPTION = (
    "Accuracy: mean ± half-width of the 95 % confidence interval (Student's t over seeds), in per cent. "
    "Differences: paired by seed, in percentage points. Bytes over the whole run; bytes and time: means over seeds."
)

ONE_SEED_CAPTION = (
    "Accuracy of one seed, in per cent: one seed gives no confidence interval. Differences: in percentage points. "
    "Bytes over the whole run."
)
SOME_SINGLE_SEEDS = "One seed gives no interval."

_METRIC_NAMES = {
    ACCURACY: "Accuracy",
    "balanced-accuracy": "Balanced accuracy (mean of the recall of all classes)",
    "macro-f1": "Macro-F1 (mean of the F1 of all classes)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """A table as text: the first column is a name, the others are right-aligned."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def cells(summary: Summary) -> Cells:
    """The table of a report."""
    columns = (
        "method",
        "seeds",
        summary.metric,
        f"vs {summary.baseline.label}",
        "sent / client",
        "received / client",
        "time",
    )
    lines = (
        (
            row.label,
            str(len(row.seeds)),
            percent(row.accuracy),
            _difference(row, summary.baseline),
            human_bytes(row.bytes_up),
            human_bytes(row.bytes_down),
            human_seconds(row.seconds),
        )
        for row in summary.rows
    )
    return Cells(columns=columns, lines=tuple(lines))


def caption(summary: Summary) -> str:
    """What the numbers of the table are."""
    has_interval = {row.accuracy.half_width is not None for row in summary.rows}
    text = ONE_SEED_CAPTION if has_interval == {False} else CAPTION
    if len(has_interval) == 2:
        text = f"{text} {SOME_SINGLE_SEEDS}"
    return text.replace("Accuracy", _METRIC_NAMES.get(summary.metric, summary.metric), 1)


def rich_table(summary: Summary) -> "Table":
    """The table for a terminal."""
    return rich_cells(cells(summary), caption(summary))


def markdown_table(summary: Summary) -> str:
    """The same table as Markdown."""
    return markdown_cells(cells(summary), caption(summary))


def rich_cells(content: Cells, caption: str) -> "Table":
    """Any table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False, padding=0, show_edge=False)
    for index, column in enumerate(content.columns):
        # Names wrap in a narrow terminal, numbers never do. Text, not str, so that rich does not read brackets in a
        # label as markup.
        heading = Text(_heading(column, max((len(line[index]) for line in content.lines), default=0)))
        table.add_column(heading, justify="right" if index else "left", no_wrap=index > 0, min_width=0 if index else 12)
    for line in content.lines:
        table.add_row(*map(Text, line))
    return table


def _heading(column: str, width: int) -> str:
    """A heading in lines that are hardly wider than the numbers below it.

    >>> _heading("received / client", 7).splitlines()
    ['received', '/ client']
    """
    parts = column.replace(" / ", "\n/ ").splitlines()
    return "\n".join(line for part in parts for line in textwrap.wrap(part, max(width, 14), break_long_words=False))


def markdown_cells(content: Cells, caption: str) -> str:
    """Any table as Markdown."""
    rule = ("---", *["---:"] * (len(content.columns) - 1))
    lines = [_markdown(content.columns), _markdown(rule), *map(_markdown, content.lines)]
    return "\n".join([*lines, "", caption, ""])


def percent(value: Estimate) -> str:
    """An accuracy in per cent; a single seed has no interval.

    >>> percent(Estimate(mean=0.9321, half_width=0.0123, count=5))
    '93.21 ± 1.23'
    >>> percent(Estimate(mean=0.9321, half_width=None, count=1))
    '93.21'
    """
    return " ".join(filter(None, (f"{100 * value.mean:.2f}", width_text(value))))


def points(value: Estimate) -> str:
    """A difference of accuracies in percentage points; a zero has no sign.

    >>> points(Estimate(mean=-0.004, half_width=0.01, count=5))
    '−0.40 ± 1.00'
    >>> points(Estimate(mean=-0.00001, half_width=None, count=1))
    '0.00'
    """
    mean = f"{100 * value.mean:+.2f}".replace("-", "−")
    return " ".join(filter(None, ("0.00" if mean in ("+0.00", "−0.00") else mean, width_text(value))))


def width_text(value: Estimate) -> str:
    """The half-width of an interval in percentage points; empty for a single value.

    >>> width_text(Estimate(mean=0.5, half_width=0.01, count=5))
    '± 1.00'
    """
    return "" if value.half_width is None else f"± {100 * value.half_width:.2f}"


def human_bytes(number: float) -> str:
    """Three significant digits and a decimal unit.

    >>> [human_bytes(n) for n in (0, 999, 1234, 999_600, 2_500_000)]
    ['0 B', '999 B', '1.23 kB', '1.00 MB', '2.50 MB']
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{_three_digits(number) if units[0] != 'B' else round(number)} {units[0]}"


def human_seconds(seconds: float) -> str:
    """Seconds up to two minutes, minutes up to two hours, then hours.

    >>> [human_seconds(s) for s in (0.046, 2.1, 600, 9000)]
    ['0.05 s', '2.1 s', '10.0 min', '2.5 h']
    """
    if seconds < 120:
        return f"{seconds:.{2 if seconds < 1 else 1}f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _difference(row: Row, baseline: Row) -> str:
    if row is baseline:
        return "baseline"
    if row.difference is None:
        return "–"
    pairs = f" ({row.difference.count} pairs)" if row.difference.count < len(row.seeds) else ""
    return points(row.difference) + pairs


def _three_digits(number: float) -> str:
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def _markdown(line: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |"
