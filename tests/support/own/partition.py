"""A user's own partition: even labels to the first half of the clients, odd labels to the second."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EvenAndOdd:
    clients: int = 4

    def split(self, labels: np.ndarray, num_classes: int, rng: np.random.Generator) -> list[np.ndarray]:
        parts: list[np.ndarray] = []
        for parity in (0, 1):
            members = rng.permutation(np.flatnonzero(labels % 2 == parity))
            parts += np.array_split(members, self.clients // 2)
        return [np.sort(part) for part in parts]
