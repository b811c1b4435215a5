"""What `--set`, `--tuned` and `--grid` say, turned into methods and grids."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from spherefed.experiment import Experiment
    from spherefed.recipes.methods import Settings

METHODS_OWN = ("model.head", "model.normalize", "loss", "calibration")
"""What makes a method one, so that a setting for all methods would turn them into each other."""


def split_settings(settings: tuple[str, ...]) -> tuple[list[str], list[tuple[str, str]]]:
    """Settings for all methods, and (method, setting) for one."""
    everywhere = [s for s in settings if ":" not in s.partition("=")[0]]
    single = [s.partition(":") for s in settings if ":" in s.partition("=")[0]]
    return everywhere, [(name, setting) for name, _, setting in single]


def set_everywhere(built: "dict[str, Experiment]", settings: list[str]) -> "dict[str, Experiment]":
    """Settings for all methods, applied to each: a method replaces the algorithm of the experiment it starts from."""
    from spherefed.errors import ConfigError
    from spherefed.experiment import changed

    for setting in settings:
        path = setting.partition("=")[0].strip()
        if any(path == own or path.startswith(f"{own}.") for own in METHODS_OWN):
            raise ConfigError(
                f"{path} is what the methods differ in; set it for one of them: {next(iter(built))}:{setting}"
            )
    algorithms = [s for s in settings if s.partition("=")[0].strip().startswith("algorithm")]
    return {name: changed(experiment, algorithms) for name, experiment in built.items()}


def note_untuned(built: "dict[str, Experiment]", tuned: "Settings") -> None:
    """Say which methods run at rates that nobody tuned for them, where others were."""
    from spherefed.recipes.methods import tuning_key

    missing = [name for name in built if tuning_key(name) not in tuned]
    if missing and tuned:
        rates = ", ".join(f"{name} (local.lr {built[name].local.lr:g})" for name in missing)
        click.echo(f"note: not tuned: {rates}; see spherefed tune", err=True)


def set_single(built: "dict[str, Experiment]", single: list[tuple[str, str]]) -> "dict[str, Experiment]":
    from spherefed.experiment import changed

    for name, setting in single:
        _check_name(name, built)
        built = {**built, name: changed(built[name], [setting])}
    return built


def tuned_values_of(recipe: str, file: Path | None, settings: list[str]) -> "Settings":
    """Tuned values by method; what the user sets for all methods takes their place."""
    from spherefed import recipes

    given = {setting.partition("=")[0].strip() for setting in settings}
    found = recipes.tuned(recipe) if file is None else recipes.read_tuned(file)
    return {name: {path: v for path, v in values.items() if path not in given} for name, values in found.items()}


def read_grids(texts: tuple[str, ...], built: "dict[str, Any]") -> tuple[str, dict[str, list[float]]]:
    """The one path that is tuned, and every method's values."""
    from spherefed.errors import ConfigError

    paths = set()
    general: list[float] | None = None
    single: dict[str, list[float]] = {}
    for text in texts:
        left, _, right = text.partition("=")
        name, colon, path = left.rpartition(":")
        paths.add(path)
        try:
            values = [float(value) for value in right.split(",")]
        except ValueError:
            raise ConfigError(f"--grid wants path=number,number,…; got {text!r}") from None
        if colon:
            _check_name(name, built)
            single[name] = values
        else:
            general = values
    missing = [name for name in built if name not in single]
    if len(paths) != 1 or (missing and general is None):
        raise ConfigError(f"--grid must name one path and serve every method; got {', '.join(texts)}")
    return paths.pop(), {name: single.get(name, general or []) for name in built}


def _check_name(name: str, known: "dict[str, Any]") -> None:
    from spherefed.errors import ConfigError
    from spherefed.schema import nearest

    if name not in known:
        raise ConfigError(f"no method {name!r} in this comparison; {nearest(name, known)}")
