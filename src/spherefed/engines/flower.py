"""Clients on Flower's SuperNodes: a fleet over messages that Flower carries, and the two apps that Flower starts.

Flower is a transport here. It is given no `Strategy` and knows no algorithm: the server app runs the same loop as
every engine, the client app calls the same `handle`. What the apps do is handed in; see `deployment/app.py`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spherefed.engines.flower_codec import beside, decode, encode  # first: it says so if Flower is missing

# isort: split
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from spherefed.messages import Evaluate, Failure, Reply, Request, Train

POLL = 0.1
"""Seconds between looks for replies. Flower's own `send_and_receive` waits three."""
GRACE = 60.0
"""Seconds that a message may live beyond the deadline of its answer."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Instead of a node's answer: why there is none."""

    cause: str


class Exchange:
    """Questions to nodes and their answers, for one run of ours (which may outlive several of Flower's)."""

    def __init__(self, grid: Grid, run: str, kinds: Mapping[str, type]) -> None:
        self._grid = grid
        self._run = run
        self._kinds = kinds

    def nodes(self) -> set[int]:
        """Who is connected now."""
        return set(self._grid.get_node_ids())

    def ask(self, nodes: Sequence[int], question: Any, deadline: float | None) -> Iterator[tuple[int, Any]]:
        """The same question to each; answers, or why there is none, in the order in which they come."""
        began = time.monotonic()
        pending = self._push(nodes, question, deadline)
        for node in set(nodes) - set(pending.values()):
            yield node, Undelivered("the message could not be sent to its node")
        late = False
        while pending and not late:
            # Seen before looking: a look can take minutes, if somebody dies while he uploads, and is for all.
            late = deadline is not None and time.monotonic() - began > deadline
            for message, answer in self._pull(list(pending)):
                if message in pending:
                    yield pending.pop(message), answer
            if pending and not late:
                time.sleep(POLL)
        for node in pending.values():
            yield node, Undelivered(f"did not answer within {deadline:g} s")

    def _push(self, nodes: Sequence[int], question: Any, deadline: float | None) -> dict[str, int]:
        """Which message went to which node."""
        content = encode(question, run=self._run)
        ttl = None if deadline is None else deadline + GRACE
        messages = [Message(content, node, message_type(type(question)), ttl=ttl) for node in nodes]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {message: node for message, node in zip(ids, nodes, strict=False) if message is not None}

    def _pull(self, messages: list[str]) -> list[tuple[str, Any]]:
        """The answers that have arrived, by the message they are to: Flower's own error replies do not name a node."""
        try:
            found = list(self._grid.pull_messages(messages))
        except Exception as error:  # somebody sent what Flower itself cannot take apart: find out who
            if len(messages) == 1:
                return [(messages[0], Undelivered(f"malformed reply: {type(error).__name__}: {error}"))]
            return [pair for message in messages for pair in self._pull([message])]
        return [(reply.metadata.reply_to_message_id, self._answer(reply)) for reply in found]

    def _answer(self, reply: Message) -> Any:
        if reply.has_error():
            return Undelivered(f"its node failed: {reply.error.reason or f'Flower error {reply.error.code}'}")
        try:
            return decode(reply.content, self._kinds)
        except Exception as error:  # a site may send anything, and nothing it sends may end the run
            return Undelivered(f"malformed reply: {type(error).__name__}: {error}")


def message_type(question: type) -> str:
    """What Flower calls a message: it knows two kinds of its own, and queries by any name."""
    own = {Train: "train", Evaluate: "evaluate"}
    return own.get(question, f"query.{question.__name__.lower()}")


class NodeFleet:
    """A fleet of clients that live on nodes, one each."""

    def __init__(
        self,
        exchange: Exchange,
        num_clients: int,
        locate: Callable[[], Mapping[int, int | str]],
        deadline: float | None,
    ) -> None:
        self._exchange = exchange
        self._clients = range(num_clients)
        self._locate = locate
        self._deadline = deadline

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Answers in the order asked, each as soon as those before it are there."""
        where = self._locate()
        done: dict[int, Reply | Failure] = {}
        client_of: dict[int, int] = {}
        for client in clients:
            node = where.get(client, "its node is not connected")
            if isinstance(node, int):
                client_of[node] = client
            else:
                done[client] = Failure(client, node)
        answers = self._exchange.ask(list(client_of), request, self._deadline)
        for client in clients:
            while client not in done:
                node, answer = next(answers)
                done[client_of[node]] = _checked(client_of[node], answer)
            yield done.pop(client)

    def close(self) -> None:
        """Nothing to end: nodes are not ours."""


def _checked(client: int, answer: Any) -> Reply | Failure:
    """An answer counts for the client whose node gave it, whatever it says."""
    if isinstance(answer, Undelivered | Failure):
        return Failure(client, answer.cause)
    if not isinstance(answer, Reply):
        return Failure(client, f"answered with a {type(answer).__name__}")
    if answer.client != client:
        return Failure(client, f"answered as client {answer.client}")
    return answer


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node is told beside the message: the run's configuration, its own, and which run of ours it is."""

    run_config: Mapping[str, Any]
    node_config: Mapping[str, Any]
    run: str


def client_app(answer: Callable[[Any, Surroundings], Any], kinds: Mapping[str, type]) -> ClientApp:
    """The app that a SuperNode runs: decode, answer, encode. Whatever goes wrong is an answer too, with its cause."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        try:
            run = beside(message.content, "run")
            question = decode(message.content, kinds)
            reply = answer(question, Surroundings(dict(context.run_config), dict(context.node_config), run))
        except Exception as error:
            reply = Failure(-1, f"{type(error).__name__}: {error}")
        return Message(encode(reply), reply_to=message)

    app.train()(handle)
    app.evaluate()(handle)
    for kind in kinds.values():
        name = message_type(kind)
        if name.startswith("query."):
            app.query(name.removeprefix("query."))(handle)
    return app


def server_app(
    serve: Callable[[Callable[[str], Exchange], Mapping[str, Any]], None], kinds: Mapping[str, type]
) -> ServerApp:
    """The app that the SuperLink runs: `serve` is given a way to open the exchange and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(lambda run: Exchange(grid, run, kinds), dict(context.run_config))

    return app
