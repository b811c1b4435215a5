"""Commands that run experiments and evaluate runs."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

from spherefed.cli.options import (
    BASE_NAMES,
    DATA_ROOT,
    JOBS,
    JSON,
    METHOD,
    METRIC,
    SET,
    TRACK,
    comparison_options,
    engine_options,
    example,
)
from spherefed.cli.output import note_divergence, print_json, print_result
from spherefed.cli.report import show_runs
from spherefed.cli.settings import (
    apply_method_settings,
    apply_shared_settings,
    find_method,
    note_untuned,
    split_settings,
    tuned_values_of,
)
from spherefed.cli.signals import resumable

if TYPE_CHECKING:
    from spherefed.experiment import Experiment
    from spherefed.runs.runner import Engine

OVERLAY_NAMES = "ffc, ffc-gcv, ccvr, oracle, babu, spherefed, one-shot"

P = ParamSpec("P")


def performance_options(command: Callable[P, None]) -> Callable[P, None]:
    """--compile, --precision: shortcuts for fields of the experiment. They are fields because they change rounding."""

    @wraps(command)
    def with_settings(*args: P.args, **kwargs: P.kwargs) -> None:
        given: list[str] = ["compile=true"] if kwargs.pop("compile_") else []
        if precision := kwargs.pop("precision"):
            given.append(f"precision={precision}")
        kwargs["settings"] = (*given, *kwargs["settings"])  # type: ignore[misc]
        command(*args, **kwargs)

    for option in (
        click.option(
            "--precision",
            type=click.Choice(["fp32", "bf16"]),
            help="Precision of forward and backward passes; same as --set precision=…",
        ),
        click.option("--compile", "compile_", is_flag=True, help="Use torch.compile; same as --set compile=true."),
    ):
        with_settings = option(with_settings)
    return with_settings


@click.command(
    epilog=example(
        "spherefed run digits --set partition.alpha=0.5 --set seed=3",
        "spherefed run my-experiment.toml --out runs/mine --workers 2",
        "spherefed run digits --method fedprox+spherefed",
        "spherefed run digits --out runs/mine --resume",
    )
)
@click.argument("experiment")
@METHOD
@SET
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/NAME-seedSEED-DIGEST].")
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
@TRACK
@click.option(
    "--keep-client-statistics",
    is_flag=True,
    help="Store the calibration statistics of every client in the run, for `spherefed head forget` [default: the sum].",
)
@JSON
@engine_options
@performance_options
def run(
    experiment: str,
    method: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    track: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Run one EXPERIMENT: the name of a recipe, a TOML or JSON file, or an earlier run directory."""
    from spherefed.api.progress import show_progress
    from spherefed.recipes import find_experiment
    from spherefed.runs import runner
    from spherefed.runs.comparison import rounds_before
    from spherefed.runs.directory import read_json
    from spherefed.tracking.following import tracked

    engine = runner.Engine(**computing)
    resolved = find_experiment(experiment, settings) if method is None else find_method(experiment, method, settings)
    out = out or Path("runs") / f"{resolved.name}-seed{resolved.seed}-{resolved.digest()[:8]}"
    label = f"{resolved.name}, seed {resolved.seed}"
    before = rounds_before([out]) if resume else {}
    with (
        resumable(out),
        nullcontext() if track is None else tracked(track, out) as follow,
        show_progress(label, resolved.rounds, completed=before, lines=True) as view,
    ):
        activity = view.watch_run(resolved, out)
        for progress in runner.run(resolved, out, engine=engine, resume=resume, activity=activity):
            view.advance(out, progress)
            if follow is not None:
                follow(out)
    note_divergence([out])
    result = read_json(out / "result.json")
    if as_json:
        print_json({"run": str(out), **result})
        return
    print_result(result)
    click.echo(f"run: {out}")


@click.command(
    epilog=example(
        "spherefed compare digits --seeds 5",
        "spherefed compare my-experiment.toml --with ffc,spherefed --seeds 3 --out runs/mine",
        "spherefed compare digits --seeds 5 --jobs 2",
        "spherefed compare --base fedprox --with ffc,ccvr,babu,spherefed --seeds 5",
        "spherefed compare digits --set partition.alpha=1.0 --set fedavg+spherefed:local.lr=2.0",
    )
)
@click.argument("experiment", default="digits")
@click.option("--base", default="fedavg", show_default=True, help="Base algorithm, one of " + BASE_NAMES + ".")
@click.option(
    "--with",
    "overlays",
    default="ffc,spherefed",
    show_default=True,
    help="Overlays on the base algorithm, separated by commas: " + OVERLAY_NAMES + ".",
)
@click.option("--methods", "names", metavar="A,B,…", help="Methods by name, instead of --base and --with.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Number of seeds.")
@JOBS
@TRACK
@METRIC
@JSON
@comparison_options
@engine_options
@performance_options
def compare(
    experiment: str,
    base: str,
    overlays: str,
    names: str | None,
    seeds: int,
    jobs: int,
    track: str | None,
    metric: str,
    as_json: bool,
    settings: tuple[str, ...],
    tuned: Path | None,
    out: Path | None,
    resume: bool,
    **computing: Any,
) -> None:
    """Compare methods on the same partitions of EXPERIMENT (default: digits); print a table and write a page."""
    from spherefed.errors import ConfigError
    from spherefed.recipes import find_experiment
    from spherefed.recipes.methods import with_method
    from spherefed.report.summary import check_metric
    from spherefed.runs.runner import Engine

    engine = Engine(**computing)
    check_metric(metric)
    listed = _names(names) if names is not None else [base, *(f"{base}+{name}" for name in _names(overlays))]
    if not listed:
        raise ConfigError(f"--methods names no method, got {names!r}; for example --methods fedavg,fedavg+spherefed")
    shared, per_method = split_settings(settings)
    chosen = tuned_values_of(experiment, tuned, shared)
    found = find_experiment(experiment, shared)
    built = apply_shared_settings({name: with_method(found, name, chosen) for name in listed}, shared)
    given = [name for name, setting in per_method if setting.startswith("local.lr=")]
    note_untuned(built, chosen, given, experiment if tuned is None else None)
    built = apply_method_settings(built, per_method)
    out = _run_methods(built, seeds, out, engine=engine, resume=resume, jobs=jobs, track=track)
    show_runs([out], out / "report.html", metric=metric, as_json=as_json)


@click.command(
    epilog=example(
        "spherefed personalize digits --seeds 3",
        "spherefed personalize cifar100 --set partition.alpha=0.5 --set spherefed+sgd:personalization.lr=0.5",
    )
)
@click.argument("experiment", default="digits")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Number of seeds.")
@JOBS
@TRACK
@comparison_options
@engine_options
def personalize(
    experiment: str,
    seeds: int,
    jobs: int,
    track: str | None,
    settings: tuple[str, ...],
    tuned: Path | None,
    out: Path | None,
    resume: bool,
    **computing: Any,
) -> None:
    """Compare personalised methods (Table 8) on pooled data of EXPERIMENT; 15 % of each client's data are held out."""
    from spherefed.recipes import find_experiment
    from spherefed.recipes.personal import personal_methods
    from spherefed.runs.runner import Engine

    engine = Engine(**computing)
    shared, per_method = split_settings(settings)
    tuned_values = tuned_values_of(experiment, tuned, shared)
    built = apply_shared_settings(personal_methods(find_experiment(experiment, shared), tuned_values), shared)
    built = apply_method_settings(built, per_method)
    out = _run_methods(built, seeds, out, engine=engine, resume=resume, jobs=jobs, track=track)
    show_runs([out], out / "report.html")
    click.echo(f"runs: {out}")


@click.command(
    epilog=example("spherefed evaluate runs/mine --data digits", "spherefed evaluate runs/mine --data arrays:mine.npz")
)
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--data", required=True, help="Name of a data set, or arrays:FILE.npz; the test part is used.")
@click.option("--device", default="cpu", show_default=True, help="Torch device, such as cpu or cuda.")
@JSON
@DATA_ROOT
def evaluate(run_directory: Path, data: str, device: str, as_json: bool, data_root: str | None) -> None:
    """Compute the accuracy of a finished RUN's final model on the test part of a data set."""
    from spherefed.client.evaluation import measures
    from spherefed.runs.loading import evaluate_run

    counts = evaluate_run(run_directory, data, device=device, data_root=data_root)
    if as_json:
        counted = {"correct": counts.correct, "total": counts.total, "accuracy": counts.accuracy}
        print_json({"run": str(run_directory), "data": data, **counted, **measures(counts)})
        return
    click.echo(
        f"final model on the test part of {data}: {counts.correct} of {counts.total} correct, {counts.accuracy:.2%}; "
        f"balanced accuracy {measures(counts)['balanced_accuracy']:.2%}"
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _run_methods(
    built: "dict[str, Experiment]",
    seeds: int,
    out: Path | None,
    *,
    engine: "Engine",
    resume: bool,
    jobs: int,
    track: str | None,
) -> Path:
    """Run all methods and show progress; return the folder of the runs."""
    from datetime import datetime

    from spherefed.api.progress import show_progress
    from spherefed.errors import ConfigError
    from spherefed.runs import comparison
    from spherefed.tracking.following import tracked

    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the comparison to continue")
    name = next(iter(built.values())).name
    out = out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    trainings = [job.out for job in comparison.comparison_jobs(built, seeds, out) if job.trained is None]
    before = comparison.rounds_before(trainings) if resume else {}
    total = comparison.num_steps(built, seeds)
    with (
        resumable(out),
        nullcontext() if track is None else tracked(track, out) as follow,
        show_progress(name, total, completed=before, lines=True) as view,
    ):
        for step in comparison.compare(built, seeds, out, engine=engine, resume=resume, jobs=jobs, watch=view.watch):
            view.advance(step.out, step.progress)
            if follow is not None:
                follow(step.out)
    note_divergence(sorted(path.parent for path in out.glob("*/*/result.json")))
    return out
