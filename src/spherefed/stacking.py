"""Several clients trained as one computation: the step of `training`, with clients as a first axis.

Only where clients neither remember nor bend their descent, and models have no batch statistics and draw nothing at
random. Results equal those of clients one by one up to rounding.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from spherefed.client import Client
from spherefed.errors import ConfigError
from spherefed.losses import Loss
from spherefed.messages import LEARNED_HEAD, ModelState, Train, TrainReply
from spherefed.nn.chain import Chain, chain_of
from spherefed.nn.stacked import first, stacked
from spherefed.rng import Purpose, stream
from spherefed.tensors import one_thread
from spherefed.training import Descent, Gradient, descend, effective_steps, gradient_of
from spherefed.workbench import Workbench

TINY, TOGETHER = 65_536, 10
"""Up to so many parameters, so many clients at a time."""


def suggested(bench: Workbench, cohort: int) -> int:
    """How many clients to stack where nobody said: a rule by model and cohort, never by a clock.

    Measured (docs/speed.md): calls and not products are the price of a tiny chain of plain layers, and stacked clients
    share them. With ever more parameters they only drive each other's out of the processor's caches.
    """
    tiny = bench.chain is not None and sum(p.numel() for p in bench.params.values()) <= TINY
    return min(TOGETHER, cohort) if tiny and cohort > 1 else 0


class Stack:
    """Room for several clients' models, side by side, in one process."""

    def __init__(self, bench: Workbench, size: int) -> None:
        if bench.may_draw:
            raise ConfigError(f"stack = {size} needs a model that draws nothing at random; use stack = 0")
        self.size = size
        self.bench = bench
        self._encoder = stacked(bench.classifier.encoder, size).train()
        own: dict[str, Tensor] = {f"encoder.{name}": p for name, p in self._encoder.named_parameters()}
        if bench.classifier.head.learned:
            head = bench.params[LEARNED_HEAD].detach()
            own[LEARNED_HEAD] = head.expand(size, *head.shape).clone().requires_grad_()
        if own.keys() - dict(bench.classifier.named_parameters()).keys():
            raise ConfigError(f"stack = {size} needs a model that uses every parameter once; use stack = 0")
        self.params = {name: own[name] for name in bench.params}
        self._fixed_head = bench.classifier.head.weight.detach().clone()
        self._chains: dict[int, Chain | None] = {}

    def lay(self, model: ModelState) -> None:
        """Give every client this model."""
        self._fixed_head.copy_(self.bench.head_of(model))
        with torch.no_grad():
            torch._foreach_copy_(list(self.params.values()), [model.params[name] for name in self.params])

    def moved_from(self, model: ModelState) -> dict[str, Tensor]:
        """By how much each client's parameters differ from this model's, clients first."""
        with torch.no_grad():
            return {name: stacked - model.params[name] for name, stacked in self.params.items()}

    def gradient(self, inputs: Tensor, labels: Tensor, weights: Tensor, loss: Loss) -> tuple[Tensor, Gradient]:
        """Of the first K clients, with inputs (K, n, …), labels and weights (K, n): each one's Σ_n weight · loss.

        And the gradient of the sum over clients: so each client's parameters feel their own loss alone.
        """
        chain = self._chain(len(labels))
        if chain is None:
            each_Kn = loss.each(self._scores(inputs).flatten(0, 1), labels.flatten()).view_as(labels)
            value_K = (each_Kn * weights).sum(dim=1)
            return value_K.detach(), gradient_of(value_K.sum(), tuple(self.params.values()))

        def slope(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            each, g = loss.slope(scores.flatten(0, 1), labels.flatten(), weights.flatten())
            return (each.view_as(labels) * weights).sum(dim=1), g.view_as(scores)

        return chain.gradient(inputs, labels, slope)

    def _chain(self, num: int) -> Chain | None:
        """For the first so many clients; None where autograd has to do it."""
        if num not in self._chains:
            bench = self.bench
            own = {id(p): self.params[name].detach()[:num] for name, p in bench.params.items()}
            values = {id(bench.classifier.head.weight): self._fixed_head} | own
            chained = bench.chain is not None and all(id(p) in own for p in bench.classifier.encoder.parameters())
            self._chains[num] = chain_of(bench.classifier, lambda p: values[id(p)], stacked=True) if chained else None
        return self._chains[num]

    def _scores(self, inputs: Tensor) -> Tensor:
        """(K, n, c, …) → (K, n, C)."""
        num, longest = inputs.shape[:2]
        side_by_side = inputs.transpose(0, 1).flatten(1, 2)
        features_Knl = self._encoder(side_by_side).reshape(longest, num, -1).transpose(0, 1)
        if self.bench.classifier.normalize:
            features_Knl = functional.normalize(features_Knl, dim=2)
        if LEARNED_HEAD not in self.params:
            return functional.linear(features_Knl, self._fixed_head)
        return torch.bmm(features_Knl, first(self.params[LEARNED_HEAD], num).mT)


def train_together(stack: Stack, clients: Sequence[Client], request: Train) -> list[TrainReply]:
    """What each client would answer alone, up to rounding."""
    assert len(clients) <= stack.size
    # Those with most batches first, so that whoever is still at work is always at the front.
    lined_up = sorted(clients, key=lambda client: -len(client.examples))
    duties = clients[0].duties
    seen: list[tuple[Tensor, list[int]]] = []
    with one_thread():
        stack.lay(request.model)
        descend(
            stack.params,
            _steps(stack, lined_up, request.round, seen),
            local=duties.local,
            lr=request.lr,
            prox_mu=duties.prox_mu,
            anchor=request.model.params,
        )
        moved = stack.moved_from(request.model)
    losses = [[(v, n) for v, n in zip(values.tolist(), sizes, strict=True)] for values, sizes in seen]
    replies = {}
    for place, client in enumerate(lined_up):
        own = [step[place] for step in losses if place < len(step)]
        replies[client.id] = TrainReply(
            client=client.id,
            round=request.round,
            num_examples=len(client.examples),
            effective_steps=effective_steps(
                len(own), momentum=duties.local.momentum, shrink=request.lr * duties.prox_mu
            ),
            loss=sum(v * n for v, n in own) / max(sum(n for _, n in own), 1),
            delta={name: tensor[place] for name, tensor in moved.items()},
            buffers={},
        )
    return [replies[client.id] for client in clients]


def _steps(
    stack: Stack, clients: Sequence[Client], round_index: int, seen: list[tuple[Tensor, list[int]]]
) -> Iterator[Descent]:
    """The gradient of Σ_k of client k's mean loss over its own batch.

    Short batches are filled up with examples that weigh nothing; with those of the client itself, because others'
    might not be numbers, and nothing times that is no number either.
    """
    duties, data, device = clients[0].duties, clients[0].examples, stack.bench.device
    orders = [stream(duties.seed, Purpose.BATCHES, round_index, client.id) for client in clients]
    courses = [_positions(client, order) for client, order in zip(clients, orders, strict=True)]
    while chosen := list(takewhile(len, (next(course, NO_BATCH) for course in courses))):
        sizes = [len(positions) for positions in chosen]
        num, longest = len(sizes), max(sizes)
        padded_Kn = pad_sequence(chosen, batch_first=True, padding_value=-1)
        positions = torch.where(padded_Kn < 0, padded_Kn[:, :1], padded_Kn).flatten()
        inputs, labels = data.inputs.index_select(0, positions), data.labels.index_select(0, positions).to(device)
        if duties.augment is not None:
            apart = inputs.view(num, longest, *inputs.shape[1:])
            for own, size, order in zip(apart, sizes, orders, strict=False):
                own[:size] = duties.augment(own[:size], order)
        inputs = data.finished(inputs, device).view(num, longest, *inputs.shape[1:])
        counts_K1 = torch.tensor(sizes, device=device)[:, None]
        weights_Kn = (torch.arange(longest, device=device) < counts_K1) / counts_K1.to(stack.bench.dtype)
        value_K, gradient = stack.gradient(inputs, labels.view(num, longest), weights_Kn, duties.loss)
        seen.append((value_K, sizes))
        yield gradient, num


NO_BATCH = torch.zeros(0, dtype=torch.int64)


def _positions(client: Client, order: np.random.Generator) -> Iterator[Tensor]:
    local = client.duties.local
    for _ in range(local.epochs):
        yield from client.examples.shuffled(local.batch_size, order)
