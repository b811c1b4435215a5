"""Clients on this machine, one after the other in this process; `workers` runs them in parallel, with the same bits."""

from collections.abc import Iterator, Sequence
from itertools import islice

from spherefed.client.client_state import ClientStateStore, InMemoryStates
from spherefed.client.handle import Clients, answer_group
from spherefed.client.training import batch_orders
from spherefed.engines.activity import Activity
from spherefed.messages import Failure, Reply, Request, Train
from spherefed.tensors import num_bytes

BUFFERED_BYTES = 1 << 20
"""How many bytes of answers are collected before they are passed on; only for training, because the size of other
answers is not that of the model: statistics of l features have l² numbers."""


class InProcess:
    """A fleet of clients that take turns in this process."""

    def __init__(self, clients: Clients, client_states: ClientStateStore | None = None) -> None:
        self.clients: Sequence[int] = range(len(clients))
        self.activity = Activity()
        self._clients = clients
        self._client_states = InMemoryStates() if client_states is None and clients.keep_state else client_states
        self._max_buffered = BUFFERED_BYTES // (num_bytes(clients.local_model.shared_params) + 1)

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Answer group by group. Small answers are buffered: alternating training and validation was 8 % slower."""
        stacked = self._clients.local_model.stacked
        max_buffered = self._max_buffered if isinstance(request, Train) else 1
        buffered: list[Reply | Failure] = []
        orders = batch_orders(self._clients.config.seed, request.round, clients)
        self.activity.begin(request, clients, self._clients.parts)
        for group in in_groups(clients, request, stacked.size if stacked else 0):
            own = [*islice(orders, len(group))] if isinstance(request, Train) else None
            buffered += answer_group(
                self._clients, group, request, self._client_states, stacked=stacked is not None, orders=own
            )
            self.activity.advance(group, self._clients.parts)
            if len(buffered) >= max_buffered:
                yield from buffered
                buffered = []
        yield from buffered

    def close(self) -> None:
        """Do nothing: no process was started."""


def in_groups(clients: Sequence[int], request: Request, stack: int) -> list[Sequence[int]]:
    """Which clients are handled together: for training as many as are stacked, otherwise one at a time."""
    size = stack if stack and isinstance(request, Train) else 1
    return [clients[start : start + size] for start in range(0, len(clients), size)]
