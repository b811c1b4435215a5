"""Training and evaluation mode of modules."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module and all its submodules in eval mode; restore the mode of each one afterwards.

    `module.train(was_training)` would set every submodule to the same mode and so unfreeze a BatchNorm layer that the
    caller keeps in eval mode.

    >>> frozen = nn.BatchNorm1d(4).eval()
    >>> with eval_mode(nn.Sequential(nn.Dropout(), frozen)):
    ...     pass
    >>> frozen.training
    False
    """
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes:
            submodule.training = training
