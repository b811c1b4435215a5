"""What engines of several processes share: the order in which groups start, and messages as plain arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

WINDOW = 64
"""Number of groups that are sorted by size at a time."""


def largest_first(groups: Sequence[Sequence[int]], parts: Sequence[NDArray[np.int64]]) -> Iterator[int]:
    """The order in which to start groups: the longest work first, so that no worker waits for it at the end.

    Groups are sorted within a window, because early answers are kept in memory until their turn.
    """
    for start in range(0, len(groups), WINDOW):
        tasks = range(start, min(start + WINDOW, len(groups)))
        yield from sorted(tasks, key=lambda task: -sum(len(parts[number]) for number in groups[task]))


def to_arrays(message: Any) -> Any:
    """The message with numpy arrays instead of tensors: plain bytes, no file handles that outlive a dead process."""
    if isinstance(message, torch.Tensor):
        return message.detach().cpu().numpy()
    if isinstance(message, dict):
        return {name: to_arrays(value) for name, value in message.items()}
    return _rebuilt(message, to_arrays)


def from_arrays(message: Any) -> Any:
    """The inverse of `to_arrays`; read-only arrays are copied."""
    if isinstance(message, np.ndarray):
        return torch.from_numpy(message if message.flags.writeable else message.copy())
    if isinstance(message, dict):
        return {name: from_arrays(value) for name, value in message.items()}
    return _rebuilt(message, from_arrays)


def _rebuilt(message: Any, convert: Callable[[Any], Any]) -> Any:
    if not is_dataclass(message) or isinstance(message, type):
        return message
    return type(message)(**{f.name: convert(getattr(message, f.name)) for f in fields(message)})
