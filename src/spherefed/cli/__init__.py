"""The command line: thin verbs over the library. Imports are made where they are needed, so that --help is quick."""

import sys

import click

from spherefed.cli.data import data, partition
from spherefed.cli.deploy import deploy
from spherefed.cli.experiments import compare, evaluate, personalize, report, run, tune
from spherefed.cli.options import example

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """The entry point: user errors and those of the system are one line and exit code 2, Ctrl-C is 130."""
    from spherefed.errors import SpherefedError

    try:
        commands(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SpherefedError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder one may not write to: the system's words, and which file
        click.echo(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(
    context_settings=CONTEXT,
    epilog=example("spherefed compare digits --seeds 5", "spherefed run digits --set local.epochs=2"),
)
@click.version_option(package_name="spherefed")
def commands() -> None:
    """Hyperspherical federated learning: one fixed head for all, unit features, closed-form calibration."""


for command in (run, compare, personalize, report, evaluate, tune, data, partition, deploy):
    commands.add_command(command)
