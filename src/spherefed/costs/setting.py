"""The quantities that costs depend on."""

from dataclasses import dataclass, fields

from spherefed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Size of the classifier, size of the data, and length of the training."""

    dim: int
    """l, the feature dimension."""
    num_classes: int
    """C."""
    num_examples: int
    """N, over all clients."""
    rounds: int
    """T."""
    epochs: int
    """E, local passes per round."""
    num_clients: int = 10
    """K. Table 1 does not depend on it, apart from the number of optimizer steps."""
    batch_size: int = 64
    """B."""
    num_virtual: int = 500
    """M_c, CCVR's virtual features per class."""
    refit_epochs: int = 100
    """CCVR's passes over them. Unstated in the paper: about 100 give the printed sum of Table 1."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ConfigError(f"{field.name} must be at least 1, got {value}")
        if self.num_examples < self.num_clients:
            raise ConfigError(f"{self.num_clients} clients need at least one example each, got {self.num_examples}")

    @property
    def client_examples(self) -> int:
        """n_k of an average client, rounded down."""
        return self.num_examples // self.num_clients


TABLE_1 = Setting(dim=1280, num_classes=100, num_examples=50_000, rounds=100, epochs=10)
"""MobileNetV2 on CIFAR-100."""
