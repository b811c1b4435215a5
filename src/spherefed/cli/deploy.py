"""Commands for federations between machines."""

from pathlib import Path

import click

from spherefed.cli.options import SET, example, find_experiment
from spherefed.cli.output import print_summary

FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))


@click.group(
    epilog=example(
        "spherefed deploy init federation --site north --site south --site west --address fl.example.org",
        "spherefed deploy run federation/server experiment.toml --out runs/first",
    )
)
def deploy() -> None:
    """Federations between machines, over Flower: every site keeps its data."""


@deploy.command(
    epilog=example(
        "spherefed deploy init federation --site north --site south --site west --address fl.example.org",
        "spherefed deploy init trial --site a --site b --insecure",
    )
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--site", "sites", multiple=True, required=True, metavar="NAME", help="One for each site, in order.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Under which sites reach the server.")
@click.option("--port", type=click.IntRange(1, 65535), default=9443, show_default=True)
@click.option("--insecure", is_flag=True, help="No TLS, no authentication; on loopback only.")
def init(folder: Path, sites: tuple[str, ...], address: str, port: int, insecure: bool) -> None:
    """Write a deployment FOLDER: certificates, keys, configuration, a start script for each role."""
    from spherefed.deployment import folder as deployment

    deployment.init(folder, list(sites), address=address, port=port, insecure=insecure)
    click.echo(f"deployment: {folder}; what to do with it is in {folder / 'README.md'}")


@deploy.command()
@FOLDER
def serve(folder: Path) -> None:
    """Be the server of a deployment: FOLDER is its server/. Stays in the foreground."""
    from spherefed.deployment.roles import serve_role

    serve_role(folder.resolve(), click.echo)


@deploy.command()
@FOLDER
def join(folder: Path) -> None:
    """Be a site of a deployment: FOLDER is its sites/NAME/. Stays in the foreground."""
    from spherefed.deployment.roles import join_role

    join_role(folder.resolve(), click.echo)


@deploy.command(
    epilog=example(
        "spherefed deploy run federation/server experiment.toml --out runs/first",
        "spherefed deploy run federation/server experiment.toml --out runs/first --resume",
        "spherefed deploy run federation/server digits --set partition.clients=3 --out runs/trial",
    )
)
@FOLDER
@click.argument("experiment")
@SET
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run directory, on the server.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--wait", type=click.FloatRange(0), default=120.0, show_default=True, help="Seconds to wait for sites.")
@click.option("--device", default="cpu", show_default=True, help="The server's own, for evaluation.")
@click.option("--data-root", default="", metavar="DIR", help="Where the server's data sets lie.")
def run(
    folder: Path,
    experiment: str,
    settings: tuple[str, ...],
    out: Path,
    resume: bool,
    wait: float,
    device: str,
    data_root: str,
) -> None:
    """Run EXPERIMENT on the sites of a running server; FOLDER is its server/."""
    from spherefed.deployment import control
    from spherefed.deployment.server import Order
    from spherefed.experiment import to_text

    order = Order(
        experiment=to_text(find_experiment(experiment, settings)),
        out=str(out.resolve()),
        resume=resume,
        wait=wait,
        device=device,
        data_root=data_root,
    )
    try:
        for line in control.run(folder.resolve(), order):
            click.echo(line, err=True)
    except KeyboardInterrupt:
        click.echo("the run is stopped; the same command with --resume goes on", err=True)
        raise
    print_summary([out])
    click.echo(f"run: {out}")


@deploy.command()
@FOLDER
def status(folder: Path) -> None:
    """Who is connected, and which runs there are; FOLDER is the deployment's server/."""
    from rich.console import Console
    from rich.table import Table

    from spherefed.deployment import control

    place, console = folder.resolve(), Console()
    control.check_up(place)
    for title, names, rows in (
        ("sites", ("site", "client", "status", "since"), control.sites(place)),
        ("runs", ("Flower run", "status", "submitted", "seconds"), control.runs(place)),
    ):
        table = Table(*names, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
