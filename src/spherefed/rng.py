"""Randomness by name: every draw comes from a stream called after its purpose, never from global state.

Streams with different names are independent, so a result does not depend on the order, the process or the
number of workers in which clients run, and a checkpoint needs no generator state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream is for. Numbers are part of a run's identity: never renumber, only append."""

    SPLIT = 0
    PARTITION = 1
    COHORT = 2
    ENCODER = 3
    HEAD = 4
    BATCHES = 5
    LAYERS = 6
    HOLDOUT = 7
    SUBSET = 8
    REESTIMATE = 9
    VIRTUAL = 20
    REFIT = 21


def stream(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """The random stream of this name, always from its beginning.

    >>> a = stream(0, Purpose.BATCHES, 3, 7).integers(100, size=3)
    >>> b = stream(0, Purpose.BATCHES, 3, 7).integers(100, size=3)
    >>> (a == b).all()
    np.True_
    """
    return np.random.Generator(np.random.PCG64(_name(seed, purpose, keys)))


@contextmanager
def torch_stream(seed: int, purpose: Purpose, *keys: int, device: torch.device | None = None) -> Iterator[None]:
    """Let torch's own generators follow the stream of this name; the caller's state is put back afterwards.

    For what can draw only from torch's global state: the initialisation of modules, and random layers.
    """
    words = _name(seed, purpose, keys).generate_state(2, np.uint32)
    value = int(words[0]) << 31 | int(words[1]) >> 1
    if device is not None and device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(value)
            yield
        return
    # Not torch.manual_seed: without CUDA it queues a call for it, with a stack trace that costs more than a step.
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(value)
    try:
        yield
    finally:
        generator.set_state(before)


def _name(seed: int, purpose: Purpose, keys: tuple[int, ...]) -> np.random.SeedSequence:
    words = (seed, 0, 0, 0, int(purpose), *keys)
    if max(words) < 2**32:  # what the general form below would make of them, at half its price
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), *keys))
