"""Commands that run experiments and look at runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spherefed.cli.options import (
    DATA_ROOT,
    SET,
    comparison_options,
    engine_options,
    example,
    find_experiment,
    pace_options,
)
from spherefed.cli.output import print_summary, resumable, show_progress
from spherefed.cli.settings import (
    note_untuned,
    read_grids,
    set_everywhere,
    set_single,
    split_settings,
    tuned_values_of,
)

if TYPE_CHECKING:
    from spherefed.experiment import Experiment
    from spherefed.runner import Engine

BASE_NAMES = "fedavg, fedprox, fednova, fedopt, fedadam, fedyogi, fedadagrad, scaffold, feddyn, moon"
OVERLAY_NAMES = "ffc, ffc-gcv, ccvr, oracle, babu, spherefed; separated by commas"


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
@pace_options
def run(experiment: str, settings: tuple[str, ...], out: Path | None, resume: bool, engine: "Engine") -> None:
    """Run one EXPERIMENT: a recipe by name, a TOML or JSON file, or an earlier run directory."""
    from spherefed import runner

    resolved = find_experiment(experiment, settings)
    out = out or Path("runs") / f"{resolved.name}-seed{resolved.seed}-{resolved.digest()[:8]}"
    with resumable(out), show_progress(resolved.rounds) as advance:
        for progress in runner.run(resolved, out, engine=engine, resume=resume):
            advance(f"{resolved.name}, seed {resolved.seed}", progress, progress.index + 1)
    print_summary([out])
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
@click.option("--base", default="fedavg", show_default=True, help="One of " + BASE_NAMES + ".")
@click.option("--with", "overlays", default="ffc,spherefed", show_default=True, help="Of " + OVERLAY_NAMES + ".")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@comparison_options
@engine_options
@pace_options
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
    everywhere, single = split_settings(settings)
    chosen = tuned_values_of(experiment, tuned, everywhere)
    built = set_everywhere(methods(find_experiment(experiment, everywhere), base, names, chosen), everywhere)
    note_untuned(built, chosen)
    out = _run_methods(set_single(built, single), seeds, out, engine=engine, resume=resume)
    if print_summary([out]):
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

    everywhere, single = split_settings(settings)
    tuned_values = tuned_values_of(experiment, tuned, everywhere)
    built = set_everywhere(personal_methods(find_experiment(experiment, everywhere), tuned_values), everywhere)
    out = _run_methods(set_single(built, single), seeds, out, engine=engine, resume=resume)
    print_summary([out])
    click.echo(f"runs: {out}")


@click.command(epilog=example("spherefed report runs/digits-20260101-120000", "spherefed report runs --out page.html"))
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default="report.html", show_default=True)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def report(runs: tuple[Path, ...], out: Path, markdown: bool) -> None:
    """Make the table and the page from RUNS: run directories, or folders of them."""
    from spherefed.report.page import write_page

    if print_summary(list(runs), markdown=markdown):
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
    from spherefed.errors import ConfigError
    from spherefed.recipes.methods import CALIBRATES, methods
    from spherefed.runs import write_json

    names = [name.strip() for name in overlays.split(",") if name.strip()]
    if calibrating := [name for name in names if name in CALIBRATES]:
        raise ConfigError(
            f"{', '.join(calibrating)} share the training of the base, which is what is tuned: leave them out"
        )
    built = set_everywhere(methods(find_experiment(experiment, settings), base, names, {}), list(settings))
    path, starts = read_grids(grids, built)
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


def _run_methods(
    built: "dict[str, Experiment]", seeds: int, out: Path | None, *, engine: "Engine", resume: bool
) -> Path:
    """Run them all, showing progress; the folder of the runs."""
    from datetime import datetime

    from spherefed import comparison
    from spherefed.errors import ConfigError

    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the comparison to go on with")
    out = out or Path("runs") / f"{next(iter(built.values())).name}-{datetime.now():%Y%m%d-%H%M%S}"
    with resumable(out), show_progress(comparison.num_steps(built, seeds)) as advance:
        for step in comparison.compare(built, seeds, out, engine=engine, resume=resume):
            advance(f"{step.method}, seed {step.seed}", step.progress)
    return out
