"""Commands for federations across machines."""

from pathlib import Path

import click

from spherefed.cli.options import SET, example
from spherefed.cli.output import DEFAULT_WIDTH, print_summary

FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))


@click.group(
    epilog=example(
        "spherefed deploy init federation --site north --site south --site west --address fl.example.org",
        "spherefed deploy run federation/server experiment.toml --out runs/first",
    )
)
def deploy() -> None:
    """Run federations across machines with Flower; every site keeps its data."""


@deploy.command(
    epilog=example(
        "spherefed deploy init federation --site north --site south --site west --address fl.example.org",
        "spherefed deploy init trial --site a --site b --insecure",
    )
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--site",
    "sites",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name of a site; repeat for each site. The first is client 0.",
)
@click.option(
    "--address", default="127.0.0.1", show_default=True, help="Host name or IP address at which sites reach the server."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9443, show_default=True, help="TCP port of the server.")
@click.option("--insecure", is_flag=True, help="No TLS and no authentication; only for an address on loopback.")
@click.option(
    "--keys-at-sites", is_flag=True, help="Make no keys for the sites; each site makes its own with join --new-key."
)
def init(folder: Path, sites: tuple[str, ...], address: str, port: int, insecure: bool, keys_at_sites: bool) -> None:
    """Write a deployment FOLDER: certificates, keys, configuration and a start script for each role."""
    from spherefed.deployment import folder as deployment

    deployment.init(folder, list(sites), address=address, port=port, insecure=insecure, keys_at_sites=keys_at_sites)
    click.echo(f"deployment: {folder}; for the next steps see {folder / 'README.md'}")


@deploy.command()
@FOLDER
def serve(folder: Path) -> None:
    """Run the server of a deployment in the foreground; FOLDER is the deployment's server/."""
    from spherefed.deployment.roles import serve_role

    serve_role(folder.resolve(), click.echo)


@deploy.command()
@FOLDER
@click.option(
    "--new-key", is_flag=True, help="Make this site's key, print the public key for the server's operator, and exit."
)
def join(folder: Path, new_key: bool) -> None:
    """Run a site of a deployment in the foreground; FOLDER is the deployment's sites/NAME/."""
    if new_key:
        from spherefed.deployment.keys import fingerprint, new_site_key

        line = new_site_key(folder.resolve())
        click.echo(line)
        click.echo(f"send this line to the server's operator; its fingerprint is {fingerprint(line)}", err=True)
        return
    from spherefed.deployment.roles import join_role

    join_role(folder.resolve(), click.echo)


@deploy.command(
    epilog=example(
        "spherefed deploy add federation/server north --public-key north.pub",
        "spherefed deploy add federation/server east --site-folder federation/sites/east",
    )
)
@FOLDER
@click.argument("site")
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="File with the site's public key, as printed by join --new-key.",
)
@click.option(
    "--site-folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder to write for a new site; it must be empty or missing.",
)
def add(folder: Path, site: str, public_key: Path | None, site_folder: Path | None) -> None:
    """Add SITE's public key, or write the folder of a new SITE; FOLDER is the deployment's server/."""
    from spherefed.deployment.keys import add_site

    for line in add_site(folder.resolve(), site, public_key=public_key, site_folder=site_folder):
        click.echo(line)


@deploy.command()
@FOLDER
@click.argument("site")
def revoke(folder: Path, site: str) -> None:
    """Revoke SITE's key permanently; FOLDER is the deployment's server/."""
    from spherefed.deployment.keys import revoke_site

    click.echo(revoke_site(folder.resolve(), site))


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
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Run directory on the server.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Seconds to wait until all sites are connected.",
)
@click.option("--device", default="cpu", show_default=True, help="Torch device of the server, used for evaluation.")
@click.option(
    "--data-root", default="", metavar="DIR", help="Folder of the server's data sets [default: $SPHEREFED_DATA]."
)
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
    """Run EXPERIMENT on the sites of a running server; FOLDER is the deployment's server/."""
    from spherefed.api.progress import show_progress
    from spherefed.deployment import control
    from spherefed.deployment.server import RunRequest
    from spherefed.experiment import experiment_to_json
    from spherefed.recipes import find_experiment
    from spherefed.runs.comparison import rounds_before

    resolved = find_experiment(experiment, settings)
    request = RunRequest(
        experiment=experiment_to_json(resolved),
        out=str(out.resolve()),
        resume=resume,
        wait=wait,
        device=device,
        data_root=data_root,
    )
    label = f"{resolved.name}, seed {resolved.seed}"
    before = rounds_before([out]) if resume else {}
    try:
        with show_progress(label, resolved.rounds, completed=before, lines=True) as view:
            view.watch_folder(resolved, out)  # the server writes there, on this machine
            for progress in control.run(folder.resolve(), request):
                view.advance(out, progress)
    except KeyboardInterrupt:
        click.echo("the run is stopped; to continue, give the same command with --resume", err=True)
        raise
    print_summary([out])
    _print_sites(out)
    click.echo(f"run: {out}")


def _print_sites(run: Path) -> None:
    """One row per site; a site that is missing changes what the accuracy is about."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from spherefed.deployment.participation import evaluated_stage, missing_sites, site_rows
    from spherefed.experiment import read_experiment

    rows = site_rows(run)
    stage = evaluated_stage(run)
    heading = f"accuracy, {stage}" if stage else "accuracy"
    table = Table("site", "client", "rounds", "held-out examples", heading, "left out of statistics", title="sites")
    for row in rows:
        accuracy = "missing" if row.is_missing else "–" if row.accuracy is None else f"{row.accuracy:.2%}"
        left_out = str(row.left_out_of_statistics)
        table.add_row(
            escape(row.site), str(row.client), str(row.rounds), str(row.num_examples or "–"), accuracy, left_out
        )
    console = Console()
    (console if console.is_terminal else Console(width=DEFAULT_WIDTH)).print(table)
    if sentence := missing_sites(rows, read_experiment(run).rounds):
        click.echo(f"warning: {sentence}")


@deploy.command()
@FOLDER
def status(folder: Path) -> None:
    """List the sites with their status, and the runs; FOLDER is the deployment's server/."""
    from rich.console import Console
    from rich.table import Table

    from spherefed.deployment import control

    server, console = folder.resolve(), Console()
    control.check_up(server)
    for title, names, rows in (
        ("sites", ("site", "client", "status", "since"), control.sites(server)),
        ("runs", ("Flower run", "status", "submitted", "seconds"), control.runs(server)),
    ):
        table = Table(*names, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
