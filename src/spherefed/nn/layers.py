"""The layers of any network: which are frozen, which are random or BatchNorm, and the mode that they are in."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STEPS = "num_batches_tracked"
"""BatchNorm's counter. Other integer buffers, such as a permutation, do not change."""
_WITHOUT_RANDOMNESS = frozenset(
    {
        nn.Sequential,
        nn.Identity,
        nn.Flatten,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Tanh,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.AdaptiveMaxPool2d,
    }
)


def uses_randomness(module: nn.Module) -> bool:
    """Whether any layer may draw random numbers in training.

    Only this package's layers and a list of torch's layers are known not to; every other layer counts as random.

    >>> uses_randomness(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    False
    >>> uses_randomness(nn.Sequential(nn.Linear(8, 8), nn.Dropout()))
    True
    """
    return any(type(layer) not in _WITHOUT_RANDOMNESS and not _is_own_layer(layer) for layer in module.modules())


def prefers_channels_last(module: nn.Module) -> bool:
    """Whether a network is faster on a CPU with weights, and therefore activations, in channels-last memory format.

    Measured (docs/speed.md): networks with BatchNorm or depthwise convolutions are faster, networks with only GroupNorm
    are not. The rule depends on layers and not on a measured time, because the format changes the rounding.

    >>> prefers_channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    True
    >>> prefers_channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)))
    False
    """
    return any(
        isinstance(layer, nn.BatchNorm2d) or (isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels)
        for layer in module.modules()
    )


def _is_own_layer(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("spherefed.nn.")


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any layer is a BatchNorm.

    >>> has_batch_norm(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    True
    >>> has_batch_norm(nn.GroupNorm(4, 8))
    False
    """
    return bool(batch_norm_layers(module))


def batch_norm_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """All BatchNorm layers by name: they use batch statistics in training and keep running statistics as buffers."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What is neither trained, nor sent, nor averaged, by name.

    Modules whose `is_frozen` is true (feature maps, `Frozen`), parameters without gradients, and integers but `STEPS`.

    >>> from spherefed.nn.frozen import Frozen
    >>> list(frozen_tensors(nn.Sequential(Frozen(nn.Linear(4, 2)), nn.Linear(2, 2))))
    ['0.module.weight', '0.module.bias']
    """
    prefixes, params, buffers = _prefixes(module), module.named_parameters(), module.named_buffers()
    frozen = {name: p.detach() for name, p in params if not p.requires_grad or name.startswith(prefixes)}
    return frozen | {
        n: b.detach() for n, b in buffers if n.startswith(prefixes) or not (b.is_floating_point() or n.endswith(STEPS))
    }


def trainable_modules(module: nn.Module) -> dict[str, nn.Module]:
    """All submodules by name, except frozen modules and what is inside them."""
    prefixes = _prefixes(module)
    return {name: part for name, part in module.named_modules() if not f"{name}.".startswith(prefixes)}


def _prefixes(module: nn.Module) -> tuple[str, ...]:
    """What the names of the tensors of frozen modules begin with; nothing, if the module itself is frozen."""
    names = [name for name, part in module.named_modules() if getattr(part, "is_frozen", False)]
    return tuple(f"{name}." if name else "" for name in names)


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
