"""The command that exports the model of a finished run."""

from pathlib import Path

import click

from spherefed.cli.options import JSON, example
from spherefed.cli.output import print_json


@click.command(
    epilog=example(
        "spherefed export runs/mine model.safetensors",
        "spherefed export runs/mine model.pt2",
        "spherefed export runs/personal north.safetensors --client 0",
    )
)
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--client", type=click.IntRange(0), help="Whose model, if a part of it stays with each client.")
@JSON
def export(run_directory: Path, file: Path, client: int | None, as_json: bool) -> None:
    """Write the final model of a finished RUN to FILE, and a model card beside it.

    FILE.safetensors holds the weights and what sf.load needs to build the network again; FILE.pt2 is a program of
    torch.export that runs without spherefed.
    """
    from spherefed.runs.export import export_run

    done = export_run(run_directory, file, client=client)
    if as_json:
        print_json({"run": str(run_directory), "file": str(done.file), "card": str(done.card), "sha256": done.sha256})
        return
    click.echo(f"model: {done.file}")
    click.echo(f"card: {done.card}")
