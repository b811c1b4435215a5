"""Commands that run experiments and look at runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spherefed.cli.options import DATA_ROOT, SET, engine_options, example, find_experiment

if TYPE_CHECKING:
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
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[METHOD:]PATH=VALUE",
    help="Change a field, for all methods or for one.",
)
@click.option(
    "--tuned", type=click.Path(path_type=Path), help="A file from `spherefed tune`; default: the recipe's own."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs; default: runs/NAME-DATE.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted comparison.")
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
    from datetime import datetime

    from spherefed import comparison
    from spherefed.experiment import changed
    from spherefed.recipes.methods import methods
    from spherefed.report.page import write_page

    everywhere = [s for s in settings if ":" not in s.partition("=")[0]]
    single = [s.partition(":")[::2] for s in settings if ":" in s.partition("=")[0]]
    names = [name.strip() for name in overlays.split(",") if name.strip()]
    built = methods(find_experiment(experiment, everywhere), base, names, _tuned(experiment, tuned))
    for name, setting in single:
        _check_name(name, built)
        built[name] = changed(built[name], [setting])
    out = out or Path("runs") / f"{next(iter(built.values())).name}-{datetime.now():%Y%m%d-%H%M%S}"
    with _progress(comparison.num_steps(built, seeds)) as advance:
        for step in comparison.compare(built, seeds, out, engine=engine, resume=resume):
            advance(f"{step.method}, seed {step.seed}", step.progress)
    _print_summary([out])
    click.echo(f"page: {write_page([out], out / 'report.html').resolve()}")


@click.command(epilog=example("spherefed report runs/digits-20260101-120000", "spherefed report runs --out page.html"))
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def report(runs: tuple[Path, ...], out: Path, markdown: bool) -> None:
    """Make the table and the page from RUNS: run directories, or folders of them."""
    from spherefed.report.page import write_page

    _print_summary(list(runs), markdown=markdown)
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


def _tuned(recipe: str, file: Path | None) -> Any:
    from spherefed import recipes
    from spherefed.runs import read_json

    if file is None:
        return recipes.tuned(recipe)
    return {name: found["chosen"] for name, found in read_json(file)["methods"].items()}


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


def _print_summary(runs: list[Path], *, markdown: bool = False) -> None:
    from rich.console import Console

    from spherefed.report.summary import summarize
    from spherefed.report.tables import markdown_table, rich_table

    summary = summarize(runs)
    if markdown:
        click.echo(markdown_table(summary))
        return
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge at which to wrap
        console = Console(width=WIDE)
    console.print(rich_table(summary))
    for note in summary.notes:
        console.print(f"note: {note}", style="dim", highlight=False)


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
