"""A user's own loss: focal loss, as a function and as a component."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


def focal(scores: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    log_p = functional.log_softmax(scores, dim=1).gather(1, labels[:, None]).squeeze(1)
    return (-((1 - log_p.exp()) ** gamma) * log_p).mean()


@dataclass(frozen=True)
class Focal:
    gamma: float = 2.0

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return focal(scores, labels, self.gamma)
