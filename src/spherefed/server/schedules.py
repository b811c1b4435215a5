"""How the local learning rate falls from round to round: factors on `local.lr`, constant within a round."""

from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, Protocol

from spherefed.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Constant:
    kind: ClassVar[str] = "constant"

    def factor(self, round_index: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Cosine:
    """½(1 + cos(πt/T)): from 1 in round 0 towards 0 after the last round T."""

    kind: ClassVar[str] = "cosine"

    def factor(self, round_index: int, rounds: int) -> float:
        return 0.5 * (1 + cos(pi * round_index / rounds))


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStep:
    """×factor after every so many rounds; the paper's Table 7 uses ×0.1 every 40."""

    kind: ClassVar[str] = "multistep"
    every: int = 40
    """Rounds between two changes of the learning rate."""
    gamma: float = 0.1
    """Factor of each change."""

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.gamma <= 1:
            raise ConfigError(
                f"schedule: every must be at least 1 and gamma in (0, 1], got {self.every} and {self.gamma}"
            )

    def factor(self, round_index: int, rounds: int) -> float:
        return float(self.gamma ** (round_index // self.every))


class OwnSchedule(Protocol):
    """A user's schedule: a frozen dataclass."""

    def factor(self, round_index: int, rounds: int) -> float:
        """The factor on `local.lr` in this round."""
        ...


Schedule = Constant | Cosine | MultiStep | OwnSchedule
