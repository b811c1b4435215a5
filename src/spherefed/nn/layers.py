"""What is known of layers by their class: which draw no random numbers when they train, which like channels last."""

from torch import nn

_DRAWING_NOTHING = frozenset(
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


def may_draw(module: nn.Module) -> bool:
    """Whether any layer may draw random numbers: all but torch's own that are known not to, and this library's.

    >>> may_draw(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    False
    >>> may_draw(nn.Sequential(nn.Linear(8, 8), nn.Dropout()))
    True
    """
    return any(type(layer) not in _DRAWING_NOTHING and not _is_ours(layer) for layer in module.modules())


def likes_channels_last(module: nn.Module) -> bool:
    """Whether a network is faster with its weights, and so what flows through it, laid out channels last on a CPU.

    Measured (docs/speed.md): with BatchNorm or depthwise convolutions it is, with GroupNorm alone it is not. A rule by
    layers and not by a clock, because the layout changes the rounding.

    >>> likes_channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    True
    >>> likes_channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)))
    False
    """
    return any(
        isinstance(layer, nn.BatchNorm2d) or (isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels)
        for layer in module.modules()
    )


def _is_ours(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("spherefed.nn.")
