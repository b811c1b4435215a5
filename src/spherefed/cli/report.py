"""The report command: tables, page, figures and CSV of runs, once or while they go on."""

from pathlib import Path
from typing import Any

import click

from spherefed.cli.options import JSON, METRIC, example

PAGE = Path("report.html")


@click.command(
    epilog=example(
        "spherefed report runs/digits-20260101-120000",
        "spherefed report runs --out page.html --figures figures",
        "spherefed report runs --csv > rounds.csv",
        "spherefed report runs --watch",
    )
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help=f"HTML file to write [default: {PAGE}].")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown; write a page only with --out.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print every round and result as CSV; write a page only with --out."
)
@click.option("--figures", type=click.Path(path_type=Path), metavar="DIR", help="Write every figure as SVG and PDF.")
@click.option(
    "--target", "targets", multiple=True, type=click.FloatRange(0, 1), metavar="ACCURACY",
    help="Accuracy whose first round the page states, such as 0.9; may be repeated.",
)  # fmt: skip
@click.option(
    "--watch", is_flag=True, help="Write the page again every few seconds while runs go on; it reloads itself."
)
@click.option(
    "--every", default=5.0, show_default=True, type=click.FloatRange(1), help="Seconds between pages of --watch."
)
@click.option("--grace", default=60.0, hidden=True, help="Seconds that --watch waits for further runs.")
@METRIC
@JSON
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    markdown: bool,
    as_csv: bool,
    figures: Path | None,
    targets: tuple[float, ...],
    watch: bool,
    every: float,
    grace: float,
    metric: str,
    as_json: bool,
) -> None:
    """Print the table and write the page of RUNS: run directories, or folders of run directories."""
    from spherefed.errors import ConfigError
    from spherefed.report.page import write_figures
    from spherefed.report.reports import read_report
    from spherefed.report.summary import check_metric
    from spherefed.report.terminal import csv_text

    check_metric(metric)
    if markdown + as_csv + as_json + watch > 1:
        raise ConfigError("--markdown, --csv, --json and --watch exclude each other: give one of them")
    if watch:
        _watch(list(runs), out or PAGE, every, grace, targets)
        return
    if figures is not None:
        written = write_figures(runs, figures)
        click.echo(f"figures: {len(written)} files in {figures}", err=True)
    if as_csv:
        click.echo(csv_text(read_report(runs)), nl=False)
        _write_page(list(runs), out, targets)
        return
    page = out or (None if markdown else PAGE)
    show_runs(list(runs), page, markdown=markdown, metric=metric, as_json=as_json, targets=targets)


def show_runs(
    runs: list[Path],
    page: Path | None,
    *,
    markdown: bool = False,
    metric: str = "accuracy",
    as_json: bool = False,
    targets: tuple[float, ...] = (),
) -> None:
    """Print the tables of these runs and write their page, or print both as JSON."""
    from spherefed.cli.output import print_json, print_summary, summary_rows

    if as_json:
        written = _write_page(runs, page, targets, quiet=True)
        rows = summary_rows(runs, metric)
        print_json({"runs": [str(run) for run in runs], "page": written and str(written), "rows": rows})
        return
    print_summary(runs, markdown=markdown, metric=metric)
    _write_page(runs, page, targets, err=markdown)


def _write_page(
    runs: list[Path], page: Path | None, targets: tuple[float, ...], *, err: bool = True, quiet: bool = False
) -> Path | None:
    from spherefed.report.page import write_page

    if page is None:
        return None
    written = write_page(runs, page, targets=targets).resolve()
    if not quiet:
        click.echo(f"page: {written}", err=err)
    return written


def _watch(runs: list[Path], page: Path, every: float, grace: float, targets: tuple[float, ...]) -> None:
    """Write the page until all runs are finished, or until Ctrl-C."""
    from spherefed.report.watch import watch_page

    said: Any = None
    try:
        for step in watch_page(runs, page, interval=every, grace=grace, targets=targets):
            status = step.status
            now = None if status is None else sum(each.state == "finished" for each in status.runs)
            total = 0 if status is None else len(status.runs)
            if (now, total) != said:
                said = (now, total)
                text = "no run yet, waiting" if status is None else f"{now} of {total} runs finished"
                click.echo(f"page: {page.resolve()} ({text})", err=True)
    except KeyboardInterrupt:
        click.echo(f"page: {page.resolve()} (no longer rewritten)", err=True)
