"""Options that several commands share, and the examples in their help."""

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import click

P = ParamSpec("P")


def example(*lines: str) -> str:
    """An epilog with examples of a command."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


BASE_NAMES = "fedavg, fedprox, fednova, fedopt, fedadam, fedyogi, fedadagrad, scaffold, feddyn, moon"

DATA_ROOT = click.option(
    "--data-root", metavar="DIR", help="Folder of data sets [default: $SPHEREFED_DATA, else ~/.cache/spherefed]."
)


JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of trainings that run side by side, each in a process with one thread; results stay the same.",
)


def engine_options(command: Callable[P, None]) -> Callable[P, None]:
    """--engine, --workers, --device, --data-root and so on: fields of `Engine`, which is not part of the experiment."""
    for option in (
        DATA_ROOT,
        click.option(
            "--checkpoint-every",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="ROUNDS",
            help="Rounds between checkpoints.",
        ),
        click.option("--device", default="cpu", show_default=True, help="Torch device, such as cpu or cuda."),
        click.option(
            "--address",
            metavar="HOST:PORT",
            help="Address of a Ray cluster, or auto for the one on this machine [default: start one for this command].",
        ),
        click.option(
            "--workers",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="Number of worker processes (0 = run in this process). With Ray: number of actors (0 = one per CPU).",
        ),
        click.option(
            "--engine",
            "kind",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Where clients run: this machine or a Ray cluster.",
        ),
    ):
        command = option(command)
    return command


def comparison_options(command: Callable[P, None]) -> Callable[P, None]:
    """--set, --tuned, --out, --resume: options of commands that run several methods."""
    for option in (
        click.option("--resume", is_flag=True, help="Continue an interrupted comparison in --out."),
        click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs [default: runs/NAME-DATE]."),
        click.option(
            "--tuned",
            type=click.Path(path_type=Path),
            help="File of tuned values from `spherefed tune` [default: the recipe's own].",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="[METHOD:]PATH=VALUE",
            help="Change a field of the experiment, for all methods or for one; repeatable.",
        ),
    ):
        command = option(command)
    return command


SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a field of the experiment, e.g. partition.alpha=0.5; repeatable.",
)


TRACK = click.option(
    "--track",
    type=click.Choice(["tensorboard", "mlflow"]),
    help="Also write rounds, parameters and the final table to TensorBoard or MLflow, on this machine "
    "(unless MLFLOW_TRACKING_URI says where).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
METRIC = click.option(
    "--metric",
    default="accuracy",
    show_default=True,
    help="Metric of the table: accuracy, balanced-accuracy, macro-f1, or recall:CLASS.",
)
METHOD = click.option(
    "--method",
    metavar="BASE[+OVERLAY]",
    help="Method by name, such as fedprox+spherefed, with the recipe's tuned values; --set changes fields after it.",
)
