"""What engines of several processes share: answering for a group of clients, and messages as plain arrays."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spherefed.client import Client
from spherefed.memory import MemoryStore
from spherefed.messages import Failure, Reply, Request, Train
from spherefed.stacking import Stack, train_together


def answer(client: Callable[[int], Client], number: int, request: Request, store: MemoryStore) -> Reply | Failure:
    """One client's answer; whatever goes wrong there is a failure with a cause, not the end of the run."""
    try:
        before = store.load(number, before=request.round)
        reply, after = client(number).handle(request, before)
        if after is not None and after is not before:
            store.save(number, request.round, after)
    except Exception as error:
        return Failure(number, f"{type(error).__name__}: {error}")
    return reply


def in_groups(clients: Sequence[int], request: Request, stack: int | None) -> list[Sequence[int]]:
    """Who is answered for in one piece of work: for training as many as are stacked, else each alone."""
    size = stack if stack and isinstance(request, Train) else 1
    return [clients[start : start + size] for start in range(0, len(clients), size)]


def answer_group(
    client: Callable[[int], Client],
    numbers: Sequence[int],
    request: Request,
    store: MemoryStore,
    stack: Stack | None,
) -> Sequence[Reply | Failure]:
    """The answers of one group, in its order."""
    if stack is None or not isinstance(request, Train):
        return [answer(client, number, request, store) for number in numbers]
    try:
        return train_together(stack, [client(number) for number in numbers], request)
    except Exception as error:
        # Whose fault it is shows when each is asked alone, and the others need not suffer from it.
        alone = [answer(client, number, request, store) for number in numbers]
        if not any(isinstance(each, Failure) for each in alone):
            warnings.warn(f"clients {list(numbers)} were not stacked, but trained one by one: {error}", stacklevel=1)
        return alone


WINDOW = 64
"""Groups among which those who work choose the largest."""


def largest_first(groups: Sequence[Sequence[int]], parts: Sequence[NDArray[np.int64]]) -> Iterator[int]:
    """The order in which to begin groups: the longest work first, so that nobody waits for it at the end.

    Within a window, because answers that are early have to be kept until it is their turn.
    """
    for start in range(0, len(groups), WINDOW):
        tasks = range(start, min(start + WINDOW, len(groups)))
        yield from sorted(tasks, key=lambda task: -sum(len(parts[number]) for number in groups[task]))


def packed(message: Any) -> Any:
    """Tensors as numpy arrays: plain bytes on the way, no file handles that outlive a dead process."""
    if isinstance(message, torch.Tensor):
        return message.detach().cpu().numpy()
    if isinstance(message, dict):
        return {name: packed(value) for name, value in message.items()}
    return _rebuilt(message, packed)


def unpacked(message: Any) -> Any:
    """Tensors again; where a transport hands out arrays for reading only, they are copied."""
    if isinstance(message, np.ndarray):
        return torch.from_numpy(message if message.flags.writeable else message.copy())
    if isinstance(message, dict):
        return {name: unpacked(value) for name, value in message.items()}
    return _rebuilt(message, unpacked)


def _rebuilt(message: Any, convert: Callable[[Any], Any]) -> Any:
    if not is_dataclass(message) or isinstance(message, type):
        return message
    return type(message)(**{f.name: convert(getattr(message, f.name)) for f in fields(message)})
