"""An experiment is one value that says everything a result depends on, and nothing else.

It is read from a recipe, TOML or JSON, changed by `--set path=value`, written into the run and compared on resume.
How it is computed (engine, workers, output) is not part of it, because results do not depend on it.
"""

from spherefed.experiment.checks import SITES
from spherefed.experiment.reading import (
    experiment_from_json,
    experiment_from_mapping,
    experiment_to_json,
    read_experiment,
    with_fields,
    with_settings,
)
from spherefed.experiment.values import Data, Experiment, Model, fields_after_training

__all__ = [
    "SITES",
    "Data",
    "Experiment",
    "Model",
    "experiment_from_json",
    "experiment_from_mapping",
    "experiment_to_json",
    "fields_after_training",
    "read_experiment",
    "with_fields",
    "with_settings",
]
