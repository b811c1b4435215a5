"""What several commands share: options, and examples in their help."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

if TYPE_CHECKING:
    from spherefed.experiment import Experiment

P = ParamSpec("P")


def example(*lines: str) -> str:
    """An epilog that shows how a command is used."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


DATA_ROOT = click.option("--data-root", metavar="DIR", help="Where data sets lie; default: $SPHEREFED_DATA.")


def engine_options(command: Callable[P, None]) -> Callable[P, None]:
    """--engine, --workers, --device, --data-root and so on: how to compute, not what."""
    for option in (
        DATA_ROOT,
        click.option("--checkpoint-every", type=click.IntRange(1), default=1, show_default=True, metavar="ROUNDS"),
        click.option("--device", default="cpu", show_default=True, help="A torch device, such as cpu or cuda."),
        click.option("--address", metavar="HOST:PORT", help="Of a Ray cluster, or auto; default: a Ray of its own."),
        click.option(
            "--workers",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="Processes; 0: none. On Ray: actors; 0: one per CPU.",
        ),
        click.option(
            "--engine", "kind", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where."
        ),
    ):
        command = option(command)

    @wraps(command)
    def with_engine(*args: P.args, **kwargs: P.kwargs) -> None:
        from spherefed.runner import Engine

        given: dict[str, Any] = {
            name: kwargs.pop(name) for name in ("kind", "workers", "address", "device", "data_root", "checkpoint_every")
        }
        kwargs["engine"] = Engine(**given)
        command(*args, **kwargs)

    return with_engine


def pace_options(command: Callable[P, None]) -> Callable[P, None]:
    """--compile, --precision: short for settings of the experiment, because they change the rounding."""

    @wraps(command)
    def with_settings(*args: P.args, **kwargs: P.kwargs) -> None:
        given: list[str] = ["compile=true"] if kwargs.pop("compile_") else []
        if precision := kwargs.pop("precision"):
            given.append(f"precision={precision}")
        kwargs["settings"] = (*given, *kwargs["settings"])  # type: ignore[misc]
        command(*args, **kwargs)

    for option in (
        click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="Short for --set precision=…"),
        click.option("--compile", "compile_", is_flag=True, help="Short for --set compile=true."),
    ):
        with_settings = option(with_settings)
    return with_settings


def comparison_options(command: Callable[P, None]) -> Callable[P, None]:
    """--set, --tuned, --out, --resume, of commands that run several methods."""
    for option in (
        click.option("--resume", is_flag=True, help="Go on with an interrupted comparison."),
        click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs; default: runs/NAME-DATE."),
        click.option(
            "--tuned", type=click.Path(path_type=Path), help="A file from `spherefed tune`; default: the recipe's own."
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="[METHOD:]PATH=VALUE",
            help="Change a field, for all methods or for one.",
        ),
    ):
        command = option(command)
    return command


SET = click.option(
    "--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a field, e.g. partition.alpha=0.5."
)


def find_experiment(name: str, settings: "tuple[str, ...] | list[str]") -> "Experiment":
    from spherefed.experiment import changed, find
    from spherefed.recipes import RECIPES

    return changed(find(name, RECIPES), settings)
