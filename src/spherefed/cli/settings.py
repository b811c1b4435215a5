"""Apply `--set`, `--tuned` and `--grid` to methods and grids."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from spherefed.experiment import Experiment
    from spherefed.recipes.methods import Settings

METHOD_FIELDS = ("model.head", "model.normalize", "loss", "calibration")
"""The fields that define a method. Setting one of them for all methods would make methods equal."""


def split_settings(settings: tuple[str, ...]) -> tuple[list[str], list[tuple[str, str]]]:
    """Settings for all methods, and (method, setting) for single methods."""
    shared = [s for s in settings if ":" not in s.partition("=")[0]]
    single = [s.partition(":") for s in settings if ":" in s.partition("=")[0]]
    return shared, [(name, setting) for name, _, setting in single]


def apply_shared_settings(built: "dict[str, Experiment]", settings: list[str]) -> "dict[str, Experiment]":
    """Apply algorithm settings to each method, because a method replaces the algorithm of the initial experiment."""
    from spherefed.errors import ConfigError
    from spherefed.experiment import with_settings

    for setting in settings:
        path = setting.partition("=")[0].strip()
        if any(path == own or path.startswith(f"{own}.") for own in METHOD_FIELDS):
            raise ConfigError(
                f"{path} is a field in which the methods differ; set it for one method: {next(iter(built))}:{setting}"
            )
    algorithms = [s for s in settings if s.partition("=")[0].strip().startswith("algorithm")]
    return {name: with_settings(experiment, algorithms) for name, experiment in built.items()}


def find_method(recipe: str, method: str, settings: tuple[str, ...]) -> "Experiment":
    """The experiment of this name with a method and its tuned values, and then with these settings."""
    from spherefed.experiment import with_settings
    from spherefed.recipes import find_experiment
    from spherefed.recipes.methods import with_method

    tuned = tuned_values_of(recipe, None, list(settings))
    found = with_settings(with_method(find_experiment(recipe), method, tuned), settings)
    given = [method] if any(s.startswith("local.lr=") for s in settings) else []
    note_untuned({method: found}, tuned, given, recipe)
    return found


def note_untuned(
    built: "dict[str, Experiment]", tuned: "Settings", given: Collection[str] = (), recipe: str | None = None
) -> None:
    """Print which methods have no tuned values; the user gave values for the methods in `given`.

    The values of a `recipe` count only for its own data and encoder.
    """
    from spherefed.recipes.methods import tuning_key

    other = recipe is not None and bool(tuned) and _other_inputs(recipe, built)
    known = {} if other else tuned
    rates_of = {name: e.local.lr for name, e in built.items() if e.local is not None and e.rounds}
    missing = [name for name in rates_of if tuning_key(name) not in known and name not in given]
    if missing:
        rates = ", ".join(f"{name} (local.lr {rates_of[name]:g})" for name in missing)
        whose = f"recipe {recipe!r} has these rates for its own data and encoder; " if other else ""
        click.echo(f"note: not tuned: {rates}; {whose}tune with spherefed tune", err=True)


def _other_inputs(recipe: str, built: "dict[str, Experiment]") -> bool:
    """Whether trained methods use other data or another encoder than the recipe."""
    from spherefed.recipes import RECIPES

    own = RECIPES[recipe]()
    return any(
        (e.data.name, e.model.encoder) != (own.data.name, own.model.encoder)
        for e in built.values()
        if e.local is not None
    )


def apply_method_settings(built: "dict[str, Experiment]", per_method: list[tuple[str, str]]) -> "dict[str, Experiment]":
    from spherefed.experiment import with_settings

    for name, setting in per_method:
        _check_name(name, built)
        built = {**built, name: with_settings(built[name], [setting])}
    return built


def tuned_values_of(recipe: str, file: Path | None, settings: list[str]) -> "Settings":
    """Tuned values by method, without the fields that the user sets for all methods."""
    from spherefed import recipes

    given = {setting.partition("=")[0].strip() for setting in settings}
    found = recipes.tuned(recipe) if file is None else recipes.read_tuned(file)
    return {name: {path: v for path, v in values.items() if path not in given} for name, values in found.items()}


def read_grids(texts: tuple[str, ...], built: "dict[str, Any]") -> tuple[str, dict[str, list[float]]]:
    """The path that is tuned, and the values of each method."""
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
            raise ConfigError(
                f"--grid must be path=number,number,…; got {text!r}; for example local.lr=0.03,0.1,0.3"
            ) from None
        if colon:
            _check_name(name, built)
            single[name] = values
        else:
            general = values
    missing = [name for name in built if name not in single]
    if len(paths) != 1 or (missing and general is None):
        raise ConfigError(f"--grid must name one path and cover every method; got {', '.join(texts)}")
    return paths.pop(), {name: single.get(name, general or []) for name in built}


def _check_name(name: str, known: "dict[str, Any]") -> None:
    from spherefed.errors import ConfigError
    from spherefed.schema import suggest

    if name not in known:
        raise ConfigError(f"no method {name!r} in this comparison; {suggest(name, known)}")
