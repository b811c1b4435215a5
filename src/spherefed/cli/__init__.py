"""The command line: thin commands over the library. Commands import what they need when they run: --help is quick."""

import sys

import click

from spherefed.cli.costs import cost
from spherefed.cli.data import data, partition
from spherefed.cli.deploy import deploy
from spherefed.cli.experiments import compare, evaluate, personalize, run
from spherefed.cli.export import export
from spherefed.cli.fields import fields
from spherefed.cli.head import head
from spherefed.cli.options import example
from spherefed.cli.report import report
from spherefed.cli.reproduce import reproduce
from spherefed.cli.runs import runs
from spherefed.cli.signals import Terminated
from spherefed.cli.tune import tune
from spherefed.errors import CalibrationError, ClientError, EngineError, FederationError, SpherefedError

FAILED, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143
"""Exit codes: a failure while running, wrong input, Ctrl-C and SIGTERM (128 + signal, by the convention of shells)."""


def main() -> None:
    """The entry point: errors print one line, and the exit code says what kind of error it was."""
    try:
        if code := commands(prog_name="spherefed", standalone_mode=False):  # of click's Exit; None otherwise
            sys.exit(code)
    except (click.ClickException, click.Abort, SpherefedError, OSError, KeyboardInterrupt) as error:
        sys.exit(_report(error))


def _report(error: BaseException) -> int:
    """Print what ended the command; the exit code."""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = "" if context is None else f" See `{context.command_path} --help`."
        click.echo(f"error: {' '.join(error.format_message().split())}{hint}", err=True)
        return error.exit_code
    if isinstance(error, SpherefedError):
        click.echo(f"error: {error}", err=True)
        failed = isinstance(error, CalibrationError | ClientError | EngineError | FederationError)
        return FAILED if failed else USER_ERROR
    if isinstance(error, OSError):  # such as a full disk or a read-only folder: the system's message and the file
        click.echo(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        return FAILED
    # Ctrl-C or SIGTERM; click raises Abort from KeyboardInterrupt.
    terminated = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
    click.echo("terminated" if terminated else "interrupted", err=True)
    return TERMINATED if terminated else INTERRUPTED


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(
    context_settings=CONTEXT,
    epilog=example("spherefed compare digits --seeds 5", "spherefed run digits --set local.epochs=2"),
)
@click.version_option(package_name="spherefed")
def commands() -> None:
    """Hyperspherical federated learning: a fixed head for all clients, unit features, closed-form calibration."""


for command in (
    run,
    compare,
    personalize,
    report,
    evaluate,
    export,
    tune,
    data,
    partition,
    cost,
    reproduce,
    head,
    runs,
    deploy,
    fields,
):
    commands.add_command(command)
