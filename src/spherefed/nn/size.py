"""Whether a model fits into the memory of this machine, before its parameters are allocated."""

import os

from spherefed.errors import ConfigError
from spherefed.schema import shown

COPIES = 4
"""Tensors of the size of a model that training needs at least: parameters, gradient, update, sum of updates."""


def check_memory(num_parameters: int, what: str, value: object, *, copies: int = COPIES) -> None:
    """Refuse a model of so many float32 parameters if this machine has less memory than it needs.

    `what` and the `value` that makes it large are for the message.
    """
    needed = 4 * copies * num_parameters
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise ConfigError(
            f"{what} {shown(value)} has {_count(num_parameters)} parameters, which take at least "
            f"{_count(needed // 10**9)} GB of memory; this machine has {available // 10**9} GB: choose a smaller one"
        )


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**18 else "more than 10¹⁸"
