"""How far the clients' classifiers agree (SphereFed, Eq. 2 and 3), gathered while replies stream in."""

import torch
from torch import Tensor

BLOCK = 16
"""Clients that are compared in one computation."""
SMALLEST = 1e-12
"""Rows shorter than this have no direction; their cosine counts as zero."""


class Consistency:
    """Mean cosine and mean norm difference of W_c over classes c and pairs of clients.

    Only a sum of unit rows (C×l) and one norm per client and class are kept, beside a few heads:
    Σ_{i≠j} u_i·u_j = ‖Σ u_i‖² − Σ ‖u_i‖², and differences of norms follow from the sorted norms.
    """

    def __init__(self, head: Tensor) -> None:
        self._head = head
        self._unit_sum = torch.zeros_like(head, dtype=torch.float64)
        self._norms: list[Tensor] = []
        self._waiting: list[Tensor] = []

    def add(self, delta: Tensor) -> None:
        """One client's classifier, given as its difference from the round's."""
        self._waiting.append(delta)
        if len(self._waiting) == BLOCK:
            self._take_in()

    def _take_in(self) -> None:
        rows_kCl = torch.stack(self._waiting).add_(self._head).double()
        norms_kC = torch.linalg.vector_norm(rows_kCl, dim=2)
        self._unit_sum += (rows_kCl / norms_kC.clamp_min(SMALLEST)[:, :, None]).sum(dim=0)
        self._norms.append(norms_kC)
        self._waiting = []

    def summary(self) -> dict[str, float] | None:
        """None if there are not two clients to compare."""
        if self._waiting:
            self._take_in()
        num = sum(map(len, self._norms))
        if num < 2:
            return None
        num_pairs = num * (num - 1) / 2
        norms_KC = self._norms[0] if len(self._norms) == 1 else torch.cat(self._norms)
        unit_squares = int(torch.count_nonzero(norms_KC >= SMALLEST))
        cosines = (float(self._unit_sum.square().sum()) - unit_squares) / 2 / num_pairs
        # Sorted ascending, the i-th norm is subtracted K−1−i times and subtracted from i times.
        sums_K = norms_KC.sort(dim=0).values.sum(dim=1)
        weight_K = torch.arange(1 - num, num, 2, dtype=torch.float64, device=sums_K.device)
        differences = float(weight_K.dot(sums_K)) / num_pairs
        num_classes = len(self._head)
        return {"cosine": cosines / num_classes, "norm_difference": differences / num_classes}
