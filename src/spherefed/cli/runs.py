"""Commands about run directories."""

from pathlib import Path

import click

from spherefed.cli.options import example


@click.group(epilog=example("spherefed runs check runs"))
def runs() -> None:
    """Commands about run directories."""


@runs.command(epilog=example("spherefed runs check runs/mine", "spherefed runs check runs"))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def check(folder: Path) -> None:
    """Verify the run directory DIR, or all runs below it: compare every file with the digest that the run wrote.

    Digests detect change: damage, edits, files of another run. They are not signatures.
    """
    from spherefed.errors import SpherefedError
    from spherefed.runs.checking import check_run, find_runs

    found, num_bad = find_runs(folder), 0
    for path in found:
        try:
            checked = check_run(path)
            click.echo(f"{path}: whole, {checked.num_files} files compared, {checked.state}")
        except SpherefedError as error:
            num_bad += 1
            click.echo(f"{path}: {error}")
    click.echo(f"{len(found)} runs, {len(found) - num_bad} whole")
    if num_bad:
        raise click.exceptions.Exit(2)
