"""Fleets that change the answers of another fleet, or of which only some clients answer."""

from collections.abc import Callable, Iterator, Sequence

from spherefed.messages import Failure, Reply, Request
from spherefed.server.federation import Fleet

Tamper = Callable[[Reply | Failure], "list[Reply | Failure]"]


class Tampered:
    """A fleet whose answers pass through a function that may change, drop or repeat them."""

    def __init__(self, fleet: Fleet, tamper: Tamper) -> None:
        self.fleet, self.tamper = fleet, tamper

    @property
    def clients(self) -> Sequence[int]:
        return self.fleet.clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        for answer in self.fleet.ask(clients, request):
            yield from self.tamper(answer)


class Only:
    """A fleet that knows some of the clients only."""

    def __init__(self, fleet: Fleet, clients: Sequence[int]) -> None:
        self.fleet, self.clients = fleet, clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        return self.fleet.ask(clients, request)
