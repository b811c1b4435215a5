"""How far the clients' classifiers agree (SphereFed, Eq. 2 and 3), gathered while replies stream in."""

import torch
from torch import Tensor
from torch.nn import functional


class Consistency:
    """Mean cosine and mean norm difference of W_c over classes c and pairs of clients.

    Only a sum of unit rows (C×l) and one norm per client and class are kept, never the heads:
    Σ_{i≠j} u_i·u_j = ‖Σ u_i‖² − Σ ‖u_i‖², and differences of norms follow from the sorted norms.
    """

    def __init__(self, head: Tensor) -> None:
        self._head = head
        self._unit_sum = torch.zeros_like(head, dtype=torch.float64)
        self._unit_squares = torch.zeros(len(head), dtype=torch.float64, device=head.device)
        self._norms: list[Tensor] = []

    def add(self, delta: Tensor) -> None:
        """One client's classifier, given as its difference from the round's."""
        rows = (self._head + delta).double()
        unit = functional.normalize(rows, dim=1)
        self._unit_sum += unit
        self._unit_squares += (unit**2).sum(dim=1)
        self._norms.append(torch.linalg.vector_norm(rows, dim=1))

    def summary(self) -> dict[str, float] | None:
        """None if there are not two clients to compare."""
        num = len(self._norms)
        if num < 2:
            return None
        num_pairs = num * (num - 1) / 2
        cosine_C = ((self._unit_sum**2).sum(dim=1) - self._unit_squares) / 2 / num_pairs
        norms_KC = torch.stack(self._norms).sort(dim=0).values
        # Sorted ascending, the i-th norm is subtracted K−1−i times and subtracted from i times.
        weight_K = 2 * torch.arange(num, dtype=torch.float64, device=norms_KC.device) - (num - 1)
        difference_C = (weight_K @ norms_KC) / num_pairs
        return {"cosine": float(cosine_C.mean()), "norm_difference": float(difference_C.mean())}
