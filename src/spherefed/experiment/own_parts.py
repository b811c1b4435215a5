"""Call a user's own loss, schedule and server optimizer once before a run, so that a mistake is one line."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from spherefed.components import is_component_name
from spherefed.errors import ConfigError
from spherefed.experiment.values import Experiment
from spherefed.schema import kind_of, shown


def check_own_parts(experiment: Experiment, num_classes: int) -> None:
    """Raise a ConfigError that names the part, what it gave and what is expected."""
    if is_component_name(kind := kind_of(experiment.loss)):
        _check_loss(f"loss {kind!r}", experiment.loss, num_classes)
    if is_component_name(kind := kind_of(experiment.schedule)):
        _check_schedule(f"schedule {kind!r}", experiment.schedule, experiment.rounds)
    if is_component_name(kind := kind_of(experiment.algorithm.server)):
        _check_server(f"algorithm.server {kind!r}", experiment.algorithm.server)


def _check_loss(name: str, loss: Any, num_classes: int) -> None:
    scores = torch.zeros(2, num_classes, requires_grad=True)
    value = _called(name, lambda: loss(scores, torch.arange(2) % num_classes))
    if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
        raise ConfigError(
            f"{name} must return the mean loss of a batch, a scalar tensor with a gradient; got {_described(value)}; "
            "for example functional.cross_entropy(scores, labels)"
        )


def _check_schedule(name: str, schedule: Any, rounds: int) -> None:
    value = _called(name, lambda: schedule.factor(0, max(rounds, 1)))
    if not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ConfigError(
            f"{name} must return the factor on local.lr, a number that is not negative; got {shown(value)}; "
            "1.0 leaves the rate as it is"
        )


def _check_server(name: str, server: Any) -> None:
    delta = {"weight": torch.zeros(2, 3)}
    value = _called(name, lambda: server.step(dict(delta), {}))
    if not isinstance(value, tuple) or len(value) != 2 or not all(isinstance(each, dict) for each in value):
        raise ConfigError(f"{name} must return (update, state), two dicts of tensors; got {_described(value)}")
    shapes = {key: tuple(tensor.shape) for key, tensor in value[0].items()}
    if shapes != {key: tuple(tensor.shape) for key, tensor in delta.items()}:
        raise ConfigError(
            f"{name} must return an update with the names and shapes of the delta; got {shapes} "
            "for {'weight': (2, 3)}"
        )


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # code of the user
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{name} fails with {type(error).__name__}: {said}; mend it, or choose another") from error


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + ("" if value.requires_grad else " without a gradient")
    return shown(value) if value is None or isinstance(value, int | float | str) else f"a {type(value).__name__}"
