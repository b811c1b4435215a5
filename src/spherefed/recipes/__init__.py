"""Experiments by name, and the methods to compare on them."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from spherefed.errors import ConfigError
from spherefed.files import parse_json
from spherefed.recipes.experiments import RECIPES, find_experiment
from spherefed.recipes.methods import Settings

__all__ = ["RECIPES", "find_experiment", "read_tuned", "tuned"]


def tuned(recipe: str) -> Settings:
    """The hyper-parameters that `spherefed tune` chose for this recipe; empty if there are none."""
    file = files(__package__) / "tuned" / f"{recipe}.json"
    if not file.is_file():
        return {}
    return read_tuned(file)


def read_tuned(file: Path | Traversable) -> Settings:
    """The chosen hyper-parameters in a file written by `spherefed tune`."""
    try:
        methods = parse_json(file.read_text(encoding="utf-8"))["methods"]
        return {name: dict(entry["chosen"]) for name, entry in methods.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{file} cannot be read as the output of `spherefed tune`: {reason}; "
            "write it with `spherefed tune … --out FILE`"
        ) from error
