"""Named random streams. All random numbers come from a stream that is named by its purpose, never from global state.

Streams with different names are independent. Results therefore do not depend on the order of clients, the process or
the number of workers, and a checkpoint needs no generator state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream is used for. The numbers determine results: never change a number, only add new ones."""

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
    FEATURE_MAP = 10
    MEASURE = 11
    SERVER = 12
    SOLVE = 13
    VIRTUAL = 20
    REFIT = 21


def stream(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """A new generator at the start of the stream with this name.

    >>> a = stream(0, Purpose.BATCHES, 3, 7).integers(100, size=3)
    >>> b = stream(0, Purpose.BATCHES, 3, 7).integers(100, size=3)
    >>> (a == b).all()
    np.True_
    """
    return np.random.Generator(np.random.PCG64(_seed_sequence(seed, purpose, keys)))


@contextmanager
def torch_stream(seed: int, purpose: Purpose, *keys: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators from the stream with this name; restore their state afterwards.

    For code that can only use torch's global generators: the initialization of modules, and random layers.
    """
    words = _seed_sequence(seed, purpose, keys).generate_state(2, np.uint32)
    value = int(words[0]) << 31 | int(words[1]) >> 1
    if device is not None and device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(value)
            yield
        return
    # Not torch.manual_seed: without CUDA it queues a call and records a stack trace, which takes longer than a training
    # step of a small model.
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(value)
    try:
        yield
    finally:
        generator.set_state(state)


def _seed_sequence(seed: int, purpose: Purpose, keys: tuple[int, ...]) -> np.random.SeedSequence:
    words = (seed, 0, 0, 0, int(purpose), *keys)
    if max(words) < 2**32:  # the same sequence as the general form below, in half the time
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), *keys))
