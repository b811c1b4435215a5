"""The command that reruns tables and figures of the paper by number."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spherefed.cli.options import DATA_ROOT, JOBS, example
from spherefed.cli.output import DEFAULT_WIDTH
from spherefed.cli.signals import terminable

if TYPE_CHECKING:
    from spherefed.reproduce.item import Item
    from spherefed.reproduce.scales import Scale
    from spherefed.runs.runner import Engine


@click.command(
    epilog=example(
        "spherefed reproduce --list",
        "spherefed reproduce table1",
        "spherefed reproduce table2 --scale laptop --seeds 5 --jobs 2 --data-root ~/data",
        "spherefed reproduce all --scale tiny",
    )
)
@click.argument("item", required=False)
@click.option("--list", "list_", is_flag=True, help="List the items, their claims and how long they take.")
@click.option(
    "--scale",
    default="tiny",
    show_default=True,
    type=click.Choice(["paper", "desktop", "laptop", "tiny"]),
    help="paper: to the letter, for a GPU. desktop, laptop: CIFAR-100 at 16×16, 17 min or 4 min per training on one "
    "core. tiny: digits, in seconds.",
)
@click.option("--seeds", type=click.IntRange(1), help="Number of seeds; default: 5 (tiny and tuning: 1).")
@JOBS
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="reproduced",
    show_default=True,
    help="Folder of pages and results. Results that lie there already are not computed again.",
)
@click.option(
    "--runs", type=click.Path(path_type=Path), help="Folder of run directories with weights; default: OUT/SCALE/runs."
)
@click.option("--rows", metavar="TEXT", help="Train only for the rows that begin with this, such as FedAvg.")
@click.option("--columns", metavar="TEXT,…", help="Train only for these columns, such as 'α = 0.1'.")
@click.option(
    "--balanced",
    is_flag=True,
    help="Draw Dirichlet partitions as some other codes do: balanced sizes, at least 10 examples per client.",
)
@click.option("--no-training", is_flag=True, help="Only write pages from the results that exist.")
@click.option(
    "--claims",
    type=click.Path(path_type=Path),
    help="Also write a page of all claims in OUT to this file, and in OUT an index and the headline table.",
)
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cpu or cuda.")
@DATA_ROOT
def reproduce(
    item: str | None,
    list_: bool,
    scale: str,
    seeds: int | None,
    jobs: int,
    out: Path,
    runs: Path | None,
    rows: str | None,
    columns: str | None,
    balanced: bool,
    no_training: bool,
    claims: Path | None,
    device: str,
    data_root: str | None,
) -> None:
    """Rerun ITEM of the paper: table1 … table10, fig2 …, appc1, appc2, several separated by commas, or all.

    `regimes` and `rounds` go beyond the paper. `tuning`, `tuning-ablations`, `tuning-ccvr`, `tuning-ccvr-sphere`,
    `tuning-ccvr-rounds`, `tuning-clients`, `tuning-ffc`, `tuning-frozen`, `tuning-rounds` and `tuning-temperature`
    choose rates, or τ, on a validation split instead. An interrupted command continues when it is repeated. Items
    share trainings.
    """
    from spherefed.errors import ConfigError
    from spherefed.reproduce.catalog import find_items, find_scale, with_cells
    from spherefed.runs.runner import Engine

    if list_:
        _list_items()
    elif item is None:
        raise ConfigError("name an item, such as table2, or use --list to see all")
    else:
        found, engine = find_scale(scale, balanced=balanced), Engine(device=device, data_root=data_root)
        runs = runs or out / found.name / "runs"
        if item.startswith("tuning"):
            if no_training or rows or columns or claims:
                raise ConfigError(
                    "--no-training, --rows, --columns and --claims go with items of the paper, not with tuning"
                )
            _tune(item, found, seeds or 1, out, runs, engine, jobs)
            return
        numbers, items = list(range(seeds or found.seeds)), find_items(item, found)
        chosen = with_cells(items, rows, columns)
        if not no_training:
            _train(chosen, found, numbers, out, runs, engine, jobs)
        _write_items(items, found, numbers, out, claims)


def _train(
    items: "list[Item]", scale: "Scale", seeds: list[int], out: Path, runs: Path, engine: "Engine", jobs: int
) -> None:
    from spherefed.api.progress import show_progress
    from spherefed.errors import install_extra
    from spherefed.reproduce.campaign import plan_campaign, run_campaign
    from spherefed.reproduce.catalog import without_missing_packages
    from spherefed.reproduce.store import Store
    from spherefed.reproduce.writing import EXPERIMENTS

    items, missing = without_missing_packages(items)
    if missing:
        click.echo(f"not run: {', '.join(missing)}; {install_extra('pretrained')}", err=True)
    store = Store(out / scale.name / EXPERIMENTS)
    campaign = plan_campaign(items, seeds, store, runs)
    try:
        with terminable(), show_progress("reproduce", campaign.num_rounds, lines=True) as view:
            for event in run_campaign(campaign, store, engine=engine, processes=jobs, watch=view.watch):
                view.advance(event.job.out, event.progress)
    except KeyboardInterrupt:
        click.echo("every finished round is saved; the same command continues", err=True)
        raise


def _tune(name: str, scale: "Scale", seeds: int, out: Path, runs: Path, engine: "Engine", jobs: int) -> None:
    from spherefed.api.progress import show_progress
    from spherefed.reproduce.compact_json import write_compact_json
    from spherefed.reproduce.rates import rate_search
    from spherefed.reproduce.store import Store
    from spherefed.reproduce.writing import EXPERIMENTS

    search = rate_search(name, scale, seeds, Store(out / scale.name / EXPERIMENTS))
    # Grids may grow, so the total is a lower bound.
    wanted = search.wanted()
    total = seeds * sum(training.rounds for training in wanted.trainings()) if wanted else 0
    with terminable(), show_progress(name, total, lines=True) as view:
        for event in search.run(runs, engine=engine, processes=jobs, watch=view.watch):
            view.advance(event.job.out, event.progress)
    found = search.table()
    for method, entry in found["methods"].items():
        ((path, chosen),) = entry["chosen"].items()
        tried = ", ".join(f"{each[path]:g}: {each[entry['judged_by']]:.2%}" for each in entry["tried"])
        click.echo(f"{method}: {path} = {chosen:g} ({tried})")
    write_compact_json(out / scale.name / f"{name}.json", found)


def _write_items(items: "list[Item]", scale: "Scale", seeds: list[int], out: Path, claims: Path | None) -> None:
    from spherefed.reproduce.catalog import ITEMS
    from spherefed.reproduce.headline import write_headline
    from spherefed.reproduce.writing import write_claims

    for item in items:
        _write(item, scale, seeds, out)
    if claims is not None:
        write_claims(out, claims, ITEMS)
        if (page := write_headline(out)) is not None:
            click.echo(f"headline: {page}")


def _write(item: "Item", scale: "Scale", seeds: list[int], out: Path) -> None:
    from spherefed.reproduce.store import Store
    from spherefed.reproduce.summary import summarize_item
    from spherefed.reproduce.writing import EXPERIMENTS, write_item

    store = Store(out / scale.name / EXPERIMENTS)
    command = f"spherefed reproduce {item.name}"
    if item.computed is None:
        command += f" --scale {scale.name.removesuffix('-balanced')} --seeds {len(seeds)}"
        command += " --balanced" if scale.balanced else ""
    found = summarize_item(item, scale, seeds, store, command)
    page = write_item(found, out / scale.name)
    claims = found["computed"]["verdicts"] if "computed" in found else found["claims"]
    for claim in claims:
        click.echo(f"{item.name}: {claim['verdict']}: {claim['text']}")
    click.echo(f"page: {page}")


def _list_items() -> None:
    from rich.console import Console
    from rich.table import Table

    from spherefed.reproduce.catalog import find_items, find_scale
    from spherefed.reproduce.duration import in_words, num_shared, times
    from spherefed.reproduce.scales import SCALES

    scales = {name: find_items("all", find_scale(name)) for name in SCALES}
    measured = times(scales)
    table = Table("item", "claim", "trainings\n(shared)", *scales)
    for column in table.columns[2:]:
        column.no_wrap = True
    for item in scales["laptop"]:
        cells = [in_words(measured[name][item.name]) for name in scales]
        if item.computed is not None:
            cells = ["–"] * len(cells)
        shared = num_shared(item, scales["laptop"])
        table.add_row(item.name, item.claim, f"{len(item.trainings())} ({shared})", *cells)
    console = Console()
    (console if console.is_terminal else Console(width=DEFAULT_WIDTH)).print(table)
    click.echo(
        "Times: of one seed on one core of this machine, from a few measured steps, without clients that train "
        "alone and without training on frozen features; –: computed by formula.\n"
        "Trainings: of one seed at laptop scale; in brackets those that other items need as well, which run once."
    )
