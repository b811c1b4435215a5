"""The tables of a report for a terminal, as Markdown, and the numbers behind them as CSV."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from spherefed.report.curve_points import cumulative_seconds
from spherefed.report.personal import CAPTION as PERSONAL_CAPTION
from spherefed.report.personal import personal_cells, rows_of
from spherefed.report.reports import Report
from spherefed.report.run_files import RoundLine, Run
from spherefed.report.summary import ACCURACY, MEASURES, PERSONAL_TEST
from spherefed.report.tables import Cells, caption, cells

CSV_COLUMNS = (
    "method", "run", "seed", "stage", "round", "seconds", "bytes_up", "bytes_down", "loss", "lr", "cosine",
    "norm_difference",
)  # fmt: skip
"""The columns before those of accuracies. Bytes and seconds are cumulative; bytes are means over clients."""


def report_tables(report: Report) -> list[tuple[Cells, str]]:
    """Every table with its caption."""
    tables = []
    for summary in report.summaries:
        title = f"{MEASURES[summary.measure]}. " if len(report.summaries) > 1 else ""
        if summary.measure == PERSONAL_TEST and summary.metric == ACCURACY:
            tables.append((personal_cells(rows_of(report)), title + PERSONAL_CAPTION))
        else:
            tables.append((cells(summary), title + caption(summary)))
    return tables


def csv_text(report: Report) -> str:
    """One line per run and round, then one per stage; one column per accuracy or other measure."""
    lines = [line for group in report.groups for run in group.runs for line in _lines(run, group.name)]
    names = dict.fromkeys(name for line in lines for name in line if name not in CSV_COLUMNS)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*CSV_COLUMNS, *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _lines(run: Run, method: str) -> Iterator[dict[str, Any]]:
    same = {"method": method, "run": run.name, "seed": run.seed}
    seconds = cumulative_seconds(run)
    num_clients = max(run.partition.num_clients, 1)
    up = down = 0
    for line in run.lines:
        up, down = up + sum(line.bytes_up.values()), down + sum(line.bytes_down.values())
        totals = {"seconds": seconds[line.index + 1], "bytes_up": up / num_clients, "bytes_down": down / num_clients}
        yield {**same, "stage": "round", "round": line.index + 1, **totals, **_round_values(line)}
    for name, stage in run.stages.items():
        totals = {"seconds": stage.seconds, "bytes_up": stage.bytes_up, "bytes_down": stage.bytes_down}
        measures = {
            f"{test}/{measure}": value
            for test, found in stage.measures.items()
            for measure, value in found.items()
            if isinstance(value, int | float)
        }
        yield {**same, "stage": name, "round": run.rounds, **totals, **stage.accuracy, **measures}


def _round_values(line: RoundLine) -> dict[str, Any]:
    names = ("loss", "lr", "cosine", "norm_difference")
    return {name: getattr(line, name) for name in names if getattr(line, name) is not None} | dict(line.accuracy)
