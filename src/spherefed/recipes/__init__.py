"""Experiments by name, and the methods to run on them."""

import json
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from spherefed.errors import ConfigError
from spherefed.experiment import Experiment
from spherefed.recipes.digits import digits
from spherefed.recipes.images import cifar10, cifar100, fashion_mnist, tiny_imagenet
from spherefed.recipes.methods import Settings

RECIPES: dict[str, Callable[[], Experiment]] = {
    "digits": digits,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny-imagenet": tiny_imagenet,
}


def tuned(recipe: str) -> Settings:
    """The values `spherefed tune` chose for this recipe; none if it was never tuned."""
    file = files(__package__) / "tuned" / f"{recipe}.json"
    if not file.is_file():
        return {}
    return read_tuned(file)


def read_tuned(file: Path | Traversable) -> Settings:
    """The chosen values of a file that `spherefed tune` wrote."""
    try:
        methods = json.loads(file.read_text(encoding="utf-8"))["methods"]
        return {name: dict(found["chosen"]) for name, found in methods.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read as a table of `spherefed tune`: {error!r}") from error
