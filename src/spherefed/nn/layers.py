"""What is known of layers by their class: which of them surely draw no random numbers when they train."""

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


def _is_ours(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("spherefed.nn.")
