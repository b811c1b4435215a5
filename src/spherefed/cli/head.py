"""Commands that change the head of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spherefed.cli.options import DATA_ROOT, example

if TYPE_CHECKING:
    from spherefed.runs.head_changes import Action

RUN = click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
CLIENT = click.option("--client", type=int, required=True, help="Number of the client.")


@click.group(epilog=example("spherefed head forget runs/mine --client 3"))
def head() -> None:
    """Add a client to the head of a finished run, or forget one, without training."""


@head.command(epilog=example("spherefed head forget runs/mine --client 3"))
@RUN
@CLIENT
@DATA_ROOT
def forget(run: Path, client: int, data_root: str | None) -> None:
    """Subtract the statistics of a client and solve the head of RUN again. A trained encoder still remembers."""
    _change(run, client, "forget", data_root)


@head.command(epilog=example("spherefed head add runs/mine --client 3"))
@RUN
@CLIENT
@DATA_ROOT
def add(run: Path, client: int, data_root: str | None) -> None:
    """Add the statistics of a client that is not in the head of RUN and solve it again."""
    _change(run, client, "add", data_root)


def _change(run: Path, client: int, action: "Action", data_root: str | None) -> None:
    from spherefed.runs.head_changes import change_head

    record = change_head(run, client, action, data_root=data_root)
    accuracy = "".join(f", accuracy {value:.2%} ({name})" for name, value in record.get("accuracy", {}).items())
    done = "added to" if action == "add" else "removed from"
    click.echo(f"client {client} {done} the head of {run}; weights {record['weights_sha256'][:16]}{accuracy}")
