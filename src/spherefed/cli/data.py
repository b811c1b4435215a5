"""Commands for data: list, download and check data sets, and show partitions."""

from dataclasses import asdict
from pathlib import Path

import click

from spherefed.cli.options import DATA_ROOT, JSON, SET, example
from spherefed.cli.output import print_json


@click.group(epilog=example("spherefed data list", "spherefed data get cifar100", "spherefed data check cifar100"))
def data() -> None:
    """List, download and check data sets."""


@data.command("list", epilog=example("spherefed data list --data-root ~/data"))
@JSON
@DATA_ROOT
def list_(as_json: bool, data_root: str | None) -> None:
    """List the known data sets and where they are on this machine."""
    from rich.console import Console
    from rich.table import Table

    from spherefed.data.catalog import list_datasets
    from spherefed.data.locations import check_data_root

    check_data_root(data_root)
    listed = list_datasets(data_root)
    if as_json:
        print_json({"datasets": [{**asdict(item), "path": item.path and str(item.path)} for item in listed]})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "classes", "train", "test", "where"):
        number = column in ("classes", "train", "test")
        table.add_column(column, justify="right" if number else "left", no_wrap=column != "where", overflow="fold")
    for item in listed:
        where = str(item.path) if item.path else "missing"
        if item.name == "digits":
            where = "part of scikit-learn"
        table.add_row(item.name, str(item.num_classes), f"{item.num_train:,}", f"{item.num_test:,}", where)
    Console(highlight=False).print(table)
    if missing := [item.name for item in listed if item.path is None]:
        click.echo(f"missing data sets: run spherefed data get NAME, for example spherefed data get {missing[0]}")
    click.echo(
        "your own data: folder:PATH (one folder of images per class), arrays:FILE.npz (images, labels), "
        "table:FILE.csv or .parquet (one row per example), package.module:Name (a function of your own)"
    )


@data.command(epilog=example("spherefed data get cifar100", "spherefed data get fashion-mnist --data-root ~/data"))
@click.argument("name")
@click.option(
    "--mirror", metavar="URL", help="URL of a folder with the same files; the published MD5 is still checked."
)
@DATA_ROOT
def get(name: str, mirror: str | None, data_root: str | None) -> None:
    """Download the data set NAME from its authors and check the published MD5; continue an interrupted download."""
    from spherefed.data.catalog import get_dataset
    from spherefed.data.download import progress_bars

    with progress_bars() as progress:
        files = get_dataset(name, data_root, progress=progress, mirror=mirror)
    for file in files:
        click.echo(file)
    if not files:
        click.echo(f"{name} needs no download")


@data.command(epilog=example("spherefed data check cifar100", "spherefed data check folder:my-images"))
@click.argument("name")
@DATA_ROOT
def check(name: str, data_root: str | None) -> None:
    """Read the data set NAME; print counts, classes, channel mean and deviation, and whether the files are official."""
    from spherefed.data.catalog import check_dataset

    found = check_dataset(name, data_root)
    click.echo(f"{found.name}: {found.num_train:,} training and {found.num_test:,} test examples, {found.input_shape}")
    click.echo(
        f"{len(found.classes)} classes: {', '.join(found.classes[:10])}{' …' if len(found.classes) > 10 else ''}"
    )
    for part, counts in (("training", found.train_counts), ("test", found.test_counts)):
        click.echo(f"{part} examples per class: {min(counts)} to {max(counts)}")
    click.echo(f"mean {_numbers(found.mean)}, deviation {_numbers(found.std)} per channel")
    for key, value in found.provenance.items():
        click.echo(f"{key}: {value}")


@click.command(
    epilog=example(
        "spherefed partition digits --set partition.alpha=0.5",
        "spherefed partition cifar100 --figure partition.png --export partition.json",
        "spherefed run digits --set partition.kind=stored --set partition.path=partition.json",
    )
)
@click.argument("experiment")
@SET
@click.option("--figure", type=click.Path(path_type=Path), help="Write the heat map to this .png or .html file.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    help="Write the partition to this index file (JSON), for partition.kind=stored.",
)
@DATA_ROOT
def partition(
    experiment: str, settings: tuple[str, ...], figure: Path | None, export: Path | None, data_root: str | None
) -> None:
    """Show the partition of EXPERIMENT: examples by client and class, and measures of heterogeneity."""
    from rich.console import Console

    from spherefed.assembly import load_data, split_data
    from spherefed.data.heterogeneity import heterogeneity
    from spherefed.data.partition import write_partition
    from spherefed.recipes import find_experiment
    from spherefed.report.heatmap import heterogeneity_lines, terminal_heatmap, write_heatmap

    resolved = find_experiment(experiment, settings)
    dataset = load_data(resolved, data_root)
    parts = split_data(resolved, dataset)
    console = Console(highlight=False)
    console.print(terminal_heatmap(parts, width=console.width, colour=console.is_terminal))
    for line in heterogeneity_lines(heterogeneity(parts)):
        console.print(line)
    if figure is not None:
        write_heatmap(parts, figure)
        click.echo(f"figure: {figure}")
    if export is not None:
        write_partition(parts, export)
        click.echo(f"index file: {export}")


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.4f}" for value in values) + ")"
