"""The numbers that costs depend on."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A classifier, its data, and how long it is trained."""

    dim: int
    """l, features."""
    num_classes: int
    """C."""
    num_examples: int
    """N, over all clients."""
    rounds: int
    """T."""
    epochs: int
    """E, local passes per round."""
    num_virtual: int = 500
    """M_c, CCVR's virtual features per class."""
    refit_epochs: int = 100
    """CCVR's passes over them; unstated in the paper, about 100 give its printed sum."""


TABLE_1 = Setting(dim=1280, num_classes=100, num_examples=50_000, rounds=100, epochs=10)
"""MobileNetV2 on CIFAR-100."""
