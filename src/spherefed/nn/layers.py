"""Properties of layers by their class: random numbers in training, and speed with channels-last memory format."""

from torch import nn

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
