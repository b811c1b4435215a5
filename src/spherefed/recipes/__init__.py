"""Experiments by name."""

from collections.abc import Callable

from spherefed.experiment import Experiment
from spherefed.recipes.digits import digits

RECIPES: dict[str, Callable[[], Experiment]] = {"digits": digits}
