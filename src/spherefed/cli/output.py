"""Output of commands: tables, results and notes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

DEFAULT_WIDTH = 120
"""Columns of output that is not to a terminal."""


def print_summary(runs: list[Path], *, markdown: bool = False, metric: str = "accuracy") -> None:
    """Print one table per measure: no kind of run is left out."""
    from rich.console import Console

    from spherefed.report.reports import read_report
    from spherefed.report.tables import markdown_cells, rich_cells
    from spherefed.report.terminal import report_tables
    from spherefed.report.wording import rejection_notes, report_notes

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=DEFAULT_WIDTH)
    found = read_report(runs, metric=metric)
    for content, caption in report_tables(found):
        if markdown:
            click.echo(markdown_cells(content, caption))
        else:
            console.print(rich_cells(content, caption))
    for note in () if markdown else (*report_notes(found), *rejection_notes(found)):
        console.print(f"note: {note}", style="dim", highlight=False, markup=False)


def print_result(result: Mapping[str, Any]) -> None:
    """Print the result of one run: its accuracies before and after calibration, its traffic and its time."""
    for name in dict.fromkeys(name for stage in result["accuracy"].values() for name in stage):
        stages = [f"{stage} {values[name]:.2%}" for stage, values in result["accuracy"].items() if name in values]
        click.echo(f"accuracy, {name}: {', '.join(stages)}")
    if result["personal"] and "mean" in result["personal"]:
        spread = result["personal"]
        click.echo(f"accuracy of personal models, mean ± std over clients: {spread['mean']:.2%} ± {spread['std']:.2%}")
    up, down = (sum(phase[way] for phase in result["traffic"].values()) / 1e6 for way in ("up", "down"))
    seconds = sum(result["seconds"].values())
    click.echo(f"per client {up:.3g} MB sent and {down:.3g} MB received; {seconds:.1f} s in all")


def note_divergence(runs: list[Path]) -> None:
    """Print to standard error which of these runs diverged."""
    from spherefed.runs.directory import RunDirectory

    for run in runs:
        if sentence := RunDirectory(run).divergence():
            click.echo(f"warning: {run}: {sentence}", err=True)


def print_json(value: Any) -> None:
    """Print one JSON object; progress and notes go to standard error."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def summary_rows(runs: list[Path], metric: str = "accuracy") -> list[dict[str, Any]]:
    """The rows of all tables as plain data: mean of the metric with its 95 % interval, by measure, method and stage."""
    from spherefed.report.reports import read_report

    return [
        {
            "method": row.label,
            "stage": row.stage,
            "measure": summary.measure,
            metric: row.accuracy.mean,
            "half_width": row.accuracy.half_width,
            "seeds": dict(zip(map(str, row.seeds), row.accuracies, strict=True)),
            "difference": None if row.difference is None else row.difference.mean,
            "bytes_up": row.bytes_up,
            "bytes_down": row.bytes_down,
            "seconds": row.seconds,
        }
        for summary in read_report(runs, metric=metric).summaries
        for row in summary.rows
    ]
