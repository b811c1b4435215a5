"""The weighted mean of replies, added up while they stream in: the server's memory does not grow with the cohort. Only
a robust rule (`CohortAggregator`) needs all of them at once.

Beside the mean: how far the clients' classifiers agree (SphereFed, Eq. 2 and 3).
"""

from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from spherefed.messages import LEARNED_HEAD, TrainReply
from spherefed.server.robust import RobustRule
from spherefed.tensors import Tensors, add_prefix, strip_prefix

Weigh = Literal["examples", "clients"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The weighted mean of what clients sent, or what a robust rule makes of it."""

    delta: Tensors
    buffers: Tensors
    extra: Tensors
    num_examples: int
    num_averaged: int
    """Clients with at least one example."""
    loss: float
    """Mean training loss over the examples of the accepted replies; with a robust rule the median over clients."""
    consistency: dict[str, float] | None
    """SphereFed, Eq. 2 and 3, if heads are learned and shared."""


class Aggregator:
    """Weighted sums of replies, by default weighted by examples, p_k = n_k / Σn.

    FedNova (Wang et al. 2020):  Δ = τ_eff · Σ p_k Δ_k / ‖a_k‖₁  with  τ_eff = Σ p_k ‖a_k‖₁;  FedAvg is the same with
    every ‖a_k‖₁ = 1. Weights are normalised in `result`. Buffers and extras are averaged with p_k. The caller adds
    replies in ascending client id, because float sums depend on their order. `head` is the learned head of the round,
    needed to rebuild the clients' heads from their deltas; None if the head is fixed or private.
    """

    def __init__(self, *, normalize_steps: bool, weigh: Weigh = "examples", head: Tensor | None = None) -> None:
        self._normalize_steps, self._weigh = normalize_steps, weigh
        self._delta, self._buffers, self._extra = WeightedSum(), WeightedSum(), WeightedSum()
        self._weight = self._steps = self._loss = 0.0
        self._num_examples = self._num_averaged = 0
        self._consistency = None if head is None else Consistency(head)

    def add(self, reply: TrainReply) -> None:
        n = reply.num_examples
        if n == 0:
            return
        weight = n if self._weigh == "examples" else 1
        steps = reply.effective_steps if self._normalize_steps else 1.0
        self._delta.add(reply.delta, weight / steps)
        self._buffers.add(reply.buffers, weight)
        self._extra.add(reply.extra, weight)
        if self._consistency is not None:
            self._consistency.add(reply.delta[LEARNED_HEAD])
        self._num_examples += n
        self._num_averaged += 1
        self._weight += weight
        self._steps += weight * steps
        self._loss += n * reply.loss

    def result(self) -> Aggregate | None:
        """The mean; None if no client has an example. Nothing may be added afterwards."""
        if not self._num_examples:
            return None
        return Aggregate(
            # τ_eff = steps / weight, and p_k = weight_k / weight.
            delta=self._delta.times(self._steps / self._weight / self._weight),
            buffers=self._buffers.times(1 / self._weight),
            extra=self._extra.times(1 / self._weight),
            num_examples=self._num_examples,
            num_averaged=self._num_averaged,
            loss=self._loss / self._num_examples,
            consistency=None if self._consistency is None else self._consistency.summary(),
        )


class CohortAggregator:
    """A robust rule over the updates of the whole cohort, which it keeps: about 3K times the memory of the model.

    Every client with examples counts alike. The loss is the median over clients.
    """

    def __init__(self, rule: RobustRule, head: Tensor | None = None) -> None:
        self._rule = rule
        self._replies: list[TrainReply] = []
        self._consistency = None if head is None else Consistency(head)

    def add(self, reply: TrainReply) -> None:
        if reply.num_examples:
            self._replies.append(reply)
            if self._consistency is not None:
                self._consistency.add(reply.delta[LEARNED_HEAD])

    def result(self) -> Aggregate | None:
        """What the rule makes of the cohort; None if no client has an example."""
        if not self._replies:
            return None
        others = [add_prefix("buffers", reply.buffers) | add_prefix("extra", reply.extra) for reply in self._replies]
        delta_KD = torch.stack([_flat(reply.delta) for reply in self._replies])
        others_KE = torch.stack([_flat(tensors) for tensors in others])
        delta_D, others_E = self._rule.aggregate(delta_KD, others_KE)
        unflat = _unflat(others_E, others[0])
        return Aggregate(
            delta=_unflat(delta_D, self._replies[0].delta),
            buffers=strip_prefix("buffers", unflat),
            extra=strip_prefix("extra", unflat),
            num_examples=sum(reply.num_examples for reply in self._replies),
            num_averaged=len(self._replies),
            loss=median(reply.loss for reply in self._replies),
            consistency=None if self._consistency is None else self._consistency.summary(),
        )


def _flat(tensors: Tensors) -> Tensor:
    """All tensors in one row, in sorted order of names."""
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)]) if tensors else torch.zeros(0)


def _unflat(row: Tensor, like: Tensors) -> dict[str, Tensor]:
    """The inverse of `_flat`, in the order of `like`."""
    names = sorted(like)
    parts = dict(zip(names, torch.split(row, [like[name].numel() for name in names]), strict=True)) if names else {}
    return {name: parts[name].reshape(tensor.shape).to(tensor.dtype) for name, tensor in like.items()}


class WeightedSum:
    """Σ w · tensors, name by name, added in the order given.

    >>> total = WeightedSum()
    >>> total.add({"x": torch.ones(1)}, 2.0)
    >>> total.times(0.5)
    {'x': tensor([1.])}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, tensors: Tensors, weight: float) -> None:
        if not tensors:
            return
        if not self._sums:
            self._sums = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        torch._foreach_add_(list(self._sums.values()), [tensors[name] for name in self._sums], alpha=weight)

    def times(self, scale: float) -> dict[str, Tensor]:
        """The sum, scaled; nothing may be added afterwards."""
        if self._sums:
            torch._foreach_mul_(list(self._sums.values()), scale)
        return self._sums


BLOCK = 16
"""Number of clients that are compared in one computation."""
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
        self._pending: list[Tensor] = []

    def add(self, delta: Tensor) -> None:
        """Add one client's classifier, given as its difference from the round's."""
        self._pending.append(delta)
        if len(self._pending) == BLOCK:
            self._add_block()

    def _add_block(self) -> None:
        rows_kCl = torch.stack(self._pending).add_(self._head).double()
        norms_kC = torch.linalg.vector_norm(rows_kCl, dim=2)
        self._unit_sum += (rows_kCl / norms_kC.clamp_min(SMALLEST)[:, :, None]).sum(dim=0)
        self._norms.append(norms_kC)
        self._pending = []

    def summary(self) -> dict[str, float] | None:
        """Both means; None with fewer than two clients."""
        if self._pending:
            self._add_block()
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
