"""Commands that run experiments and look at runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spherefed.cli.options import DATA_ROOT, SET, comparison_options, engine_options, example, find_experiment

if TYPE_CHECKING:
    from spherefed.experiment import Experiment
    from spherefed.recipes.methods import Settings
    from spherefed.runner import Engine

WIDE = 120


@click.command(
    epilog=example(
        "spherefed run digits --set partition.alpha=0.5 --set seed=3",
        "spherefed run my-experiment.toml --out runs/mine --workers 2",
        "spherefed run digits --out runs/mine --resume",
    )
)
@click.argument("experiment")
@SET
@click.option("--out", type=click.Path(path_type=Path), help="The run directory; default: runs/NAME-seedS-DIGEST.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@engine_options
def run(experiment: str, settings: tuple[str, ...], out: Path | None, resume: bool, engine: "Engine") -> None:
    """Run one EXPERIMENT: a recipe by name, a TOML or JSON file, or an earlier run directory."""
    from spherefed import runner

    resolved = find_experiment(experiment, settings)
    out = out or Path("runs") / f"{resolved.name}-seed{resolved.seed}-{resolved.digest()[:8]}"
    with _progress(resolved.rounds) as advance:
        for progress in runner.run(resolved, out, engine=engine, resume=resume):
            advance(f"{resolved.name}, seed {resolved.seed}", progress, progress.index + 1)
    _print_summary([out])
    click.echo(f"run: {out}")


@click.command(
    epilog=example(
        "spherefed compare digits --seeds 5",
        "spherefed compare my-experiment.toml --with ffc,spherefed --seeds 3 --out runs/mine",
        "spherefed compare --base fedprox --with ffc,ccvr,babu,spherefed --seeds 5",
        "spherefed compare digits --set partition.alpha=1.0 --set fedavg+spherefed:local.lr=2.0",
    )
)
@click.argument("experiment", default="digits")
@click.option("--base", default="fedavg", show_default=True, help="The base algorithm.")
@click.option("--with", "overlays", default="ffc,spherefed", show_default=True, help="What is laid over it.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@comparison_options
@engine_options
def compare(
    experiment: str,
    base: str,
    overlays: str,
    seeds: int,
    settings: tuple[str, ...],
    tuned: Path | None,
    out: Path | None,
    resume: bool,
    engine: "Engine",
) -> None:
    """Compare methods on identical partitions of EXPERIMENT (default: digits) over seeds; a table and a page."""
    from spherefed.recipes.methods import methods
    from spherefed.report.page import write_page

    names = [name.strip() for name in overlays.split(",") if name.strip()]
    everywhere, single = _split(settings)
    built = methods(find_experiment(experiment, everywhere), base, names, _tuned(experiment, tuned, everywhere))
    out = _run_methods(_changed(built, single), seeds, out, engine=engine, resume=resume)
    if _print_summary([out]):
        click.echo(f"page: {write_page([out], out / 'report.html').resolve()}")


@click.command(
    epilog=example(
        "spherefed personalize digits --seeds 3",
        "spherefed personalize cifar100 --set partition.alpha=0.5 --set spherefed+sgd:personalization.lr=0.5",
    )
)
@click.argument("experiment", default="digits")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
@comparison_options
@engine_options
def personalize(
    experiment: str,
    seeds: int,
    settings: tuple[str, ...],
    tuned: Path | None,
    out: Path | None,
    resume: bool,
    engine: "Engine",
) -> None:
    """Compare personalised methods (Table 8) on pooled data of EXPERIMENT, 15 % of each client's own held out."""
    from spherefed.recipes.personal import personal_methods

    everywhere, single = _split(settings)
    built = personal_methods(find_experiment(experiment, everywhere), _tuned(experiment, tuned, everywhere))
    out = _run_methods(_changed(built, single), seeds, out, engine=engine, resume=resume)
    _print_summary([out])
    click.echo(f"runs: {out}")


@click.command(epilog=example("spherefed report runs/digits-20260101-120000", "spherefed report runs --out page.html"))
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def report(runs: tuple[Path, ...], out: Path, markdown: bool) -> None:
    """Make the table and the page from RUNS: run directories, or folders of them."""
    from spherefed.report.page import write_page

    if _print_summary(list(runs), markdown=markdown):
        click.echo(f"page: {write_page(list(runs), out).resolve()}", err=markdown)


@click.command(
    epilog=example("spherefed evaluate runs/mine --data digits", "spherefed evaluate runs/mine --data arrays:mine.npz")
)
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="A data set by name, or arrays:FILE.npz; its test part is used.")
@click.option("--device", default="cpu", show_default=True)
@DATA_ROOT
def evaluate(run_directory: Path, data: str, device: str, data_root: str | None) -> None:
    """Count the right answers of a finished RUN's final model on the test part of a data set."""
    from spherefed.runner import evaluate_run

    counts = evaluate_run(run_directory, data, device=device, data_root=data_root)
    click.echo(
        f"final model on the test part of {data}: {counts.correct} of {counts.total} right, {counts.accuracy:.2%}"
    )


@click.command(
    epilog=example(
        "spherefed tune digits --grid local.lr=0.01,0.03,0.1 --grid fedavg+spherefed:local.lr=1,3,10",
        "spherefed compare digits --tuned tuned.json",
    )
)
@click.argument("experiment")
@click.option("--base", default="fedavg", show_default=True, help="The base algorithm.")
@click.option("--with", "overlays", default="spherefed", show_default=True, help="What is laid over it.")
@click.option(
    "--grid",
    "grids",
    multiple=True,
    default=["local.lr=0.01,0.03,0.1,0.3,1.0"],
    show_default=True,
    metavar="[METHOD:]PATH=V1,V2,…",
    help="Values to start from, for all methods or for one.",
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Seeds of tuning's own.")
@click.option("--out", type=click.Path(path_type=Path), default="tuned.json", show_default=True)
@SET
@engine_options
def tune(
    experiment: str,
    base: str,
    overlays: str,
    grids: tuple[str, ...],
    seeds: int,
    out: Path,
    settings: tuple[str, ...],
    engine: "Engine",
) -> None:
    """Choose values on a validation split: a grid per method, extended at its edges, equally large for all."""
    from spherefed import tuning
    from spherefed.recipes.methods import methods
    from spherefed.runs import write_json

    names = [name.strip() for name in overlays.split(",") if name.strip()]
    built = methods(find_experiment(experiment, settings), base, names, {})
    path, starts = _grids(grids, built)
    searches: dict[str, tuning.Search] = {}
    for search in tuning.tune(built, path, starts, seeds=seeds, engine=engine):
        searches[search.method] = search
        value, scores = list(search.scores.items())[-1]
        shown = ", ".join(f"{stage} {score:.2%}" for stage, score in scores.items())
        click.echo(f"{search.method}: {path} = {value:g} → {shown}")
    for search in searches.values():
        click.echo(f"chosen for {search.method}: {path} = {search.best:g}")
    write_json(out, tuning.table(list(searches.values()), seeds))
    click.echo(f"table: {out}")


def _split(settings: tuple[str, ...]) -> tuple[list[str], list[tuple[str, str]]]:
    """Settings for all methods, and (method, setting) for one."""
    everywhere = [s for s in settings if ":" not in s.partition("=")[0]]
    single = [s.partition(":") for s in settings if ":" in s.partition("=")[0]]
    return everywhere, [(name, setting) for name, _, setting in single]


def _changed(built: "dict[str, Experiment]", single: list[tuple[str, str]]) -> "dict[str, Experiment]":
    from spherefed.experiment import changed

    for name, setting in single:
        _check_name(name, built)
        built = {**built, name: changed(built[name], [setting])}
    return built


def _run_methods(
    built: "dict[str, Experiment]", seeds: int, out: Path | None, *, engine: "Engine", resume: bool
) -> Path:
    """Run them all, showing progress; the folder of the runs."""
    from datetime import datetime

    from spherefed import comparison

    out = out or Path("runs") / f"{next(iter(built.values())).name}-{datetime.now():%Y%m%d-%H%M%S}"
    with _progress(comparison.num_steps(built, seeds)) as advance:
        for step in comparison.compare(built, seeds, out, engine=engine, resume=resume):
            advance(f"{step.method}, seed {step.seed}", step.progress)
    return out


def _tuned(recipe: str, file: Path | None, settings: list[str]) -> "Settings":
    """Tuned values by method; what the user sets for all methods takes their place."""
    from spherefed import recipes
    from spherefed.runs import read_json

    given = {setting.partition("=")[0].strip() for setting in settings}
    if file is None:
        found = recipes.tuned(recipe)
    else:
        found = {name: method["chosen"] for name, method in read_json(file)["methods"].items()}
    return {name: {path: v for path, v in values.items() if path not in given} for name, values in found.items()}


def _grids(texts: tuple[str, ...], built: "dict[str, Any]") -> tuple[str, dict[str, list[float]]]:
    """The one path that is tuned, and every method's values."""
    from spherefed.errors import ConfigError

    paths = set()
    general: list[float] | None = None
    single: dict[str, list[float]] = {}
    for text in texts:
        left, _, right = text.partition("=")
        name, colon, path = left.rpartition(":")
        paths.add(path)
        try:
            values = [float(value) for value in right.split(",")]
        except ValueError:
            raise ConfigError(f"--grid wants path=number,number,…; got {text!r}") from None
        if colon:
            _check_name(name, built)
            single[name] = values
        else:
            general = values
    missing = [name for name in built if name not in single]
    if len(paths) != 1 or (missing and general is None):
        raise ConfigError(f"--grid must name one path and serve every method; got {', '.join(texts)}")
    return paths.pop(), {name: single.get(name, general or []) for name in built}


def _check_name(name: str, known: "dict[str, Any]") -> None:
    from spherefed.errors import ConfigError
    from spherefed.schema import nearest

    if name not in known:
        raise ConfigError(f"no method {name!r} in this comparison; {nearest(name, known)}")


def _print_summary(runs: list[Path], *, markdown: bool = False) -> bool:
    """The table of clients' own models, if there are any, and that of the global one; whether a page can be made.

    Where examples are pooled there is no test set but the clients' own.
    """
    from rich.console import Console

    from spherefed.evaluation import GLOBAL_TEST, LOCAL_TEST_BY_CLIENTS
    from spherefed.report import personal, tables
    from spherefed.report.summary import summarize

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge at which to wrap
        console = Console(width=WIDE)

    def show(content: tables.Cells, caption: str) -> None:
        if markdown:
            click.echo(tables.markdown_cells(content, caption))
        else:
            console.print(tables.rich_cells(content, caption))

    tested_globally = personal.tested_globally(runs)
    if rows := personal.personal_rows(runs):
        show(personal.personal_cells(rows), personal.CAPTION)
        if not tested_globally:
            return False
    summary = summarize(runs, GLOBAL_TEST if tested_globally else LOCAL_TEST_BY_CLIENTS)
    show(tables.cells(summary), tables.CAPTION)
    for note in () if markdown else summary.notes:
        console.print(f"note: {note}", style="dim", highlight=False)
    return tested_globally


@contextmanager
def _progress(total: int) -> "Iterator[Callable[..., None]]":
    """A live bar on a terminal, a line every so often elsewhere; either way on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    done = 0
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, news="")

        def advance(what: str, progress: Any, completed: int | None = None) -> None:
            nonlocal done
            done = done + 1 if completed is None else completed
            news = f"loss {progress.loss:.4f}"
            if progress.accuracy is not None:
                news += f", accuracy {progress.accuracy:.2%}"
            bar.update(task, completed=done, description=what, news=news)
            if not console.is_terminal and progress.index + 1 == progress.rounds:
                click.echo(f"{what}: round {progress.index + 1} of {progress.rounds}, {news}", err=True)

        yield advance
