"""The command that chooses hyper-parameters."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from spherefed.cli.options import BASE_NAMES, SET, engine_options, example
from spherefed.cli.settings import apply_shared_settings, read_grids


@click.command(
    epilog=example(
        "spherefed tune digits --grid local.lr=0.01,0.03,0.1 --grid fedavg+spherefed:local.lr=1,3,10",
        "spherefed compare digits --tuned tuned.json",
    )
)
@click.argument("experiment")
@click.option("--base", default="fedavg", show_default=True, help="Base algorithm, one of " + BASE_NAMES + ".")
@click.option(
    "--with", "overlays", default="spherefed", show_default=True, help="Overlays, separated by commas: babu, spherefed."
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    default=["local.lr=0.01,0.03,0.1,0.3,1.0"],
    show_default=True,
    metavar="[METHOD:]PATH=V1,V2,…",
    help="Initial values of the grid, for all methods or for one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of seeds; tuning uses its own (1000, 1001, …).",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="tuned.json", show_default=True, help="JSON file to write."
)
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
    **computing: Any,
) -> None:
    """Choose values on a validation split. Each method has a grid of the same size, extended if an edge is best."""
    from spherefed.api.progress import show_progress
    from spherefed.errors import ConfigError
    from spherefed.recipes import find_experiment
    from spherefed.recipes.methods import CALIBRATION_OVERLAYS, methods
    from spherefed.runs import tuning
    from spherefed.runs.directory import write_json
    from spherefed.runs.runner import Engine

    engine = Engine(**computing)
    names = [name.strip() for name in overlays.split(",") if name.strip()]
    if calibrating := [name for name in names if name in CALIBRATION_OVERLAYS]:
        raise ConfigError(
            f"{', '.join(calibrating)} only calibrate and share the base's training, which is tuned: leave them out"
        )
    built = apply_shared_settings(methods(find_experiment(experiment, settings), base, names, {}), list(settings))
    path, starts = read_grids(grids, built)
    _check_writable(out)
    searches: dict[str, tuning.Search] = {}
    rounds = seeds * next(iter(built.values())).rounds
    with show_progress(f"tune {path}", sum(map(len, starts.values())) * rounds, lines=True) as view:
        for search in tuning.tune(built, path, starts, seeds=seeds, engine=engine, watch=view.watch):
            searches[search.method] = search
            value, scores = list(search.scores.items())[-1]
            shown = ", ".join(f"{stage} {score:.2%}" for stage, score in scores.items())
            print(f"{search.method}: {path} = {value:g} → {shown}", flush=True)  # rich prints it above its bars
            if len(search.scores) >= len(starts[search.method]) and search.next_value() is not None:
                view.total += rounds  # the grid grows
    for search in searches.values():
        click.echo(f"chosen for {search.method}: {path} = {search.best:g}")
    write_json(out, tuning.table(list(searches.values()), seeds))
    click.echo(f"table: {out}")


def _check_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the search and not after it."""
    from spherefed.errors import RunError

    if out.is_dir():
        raise RunError(f"--out {out} is a folder; name a file, such as {out / 'tuned.json'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise RunError(f"--out {out} cannot be written: {error.strerror}; choose another file") from error
