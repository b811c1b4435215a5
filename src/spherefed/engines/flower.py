"""Clients on Flower's SuperNodes: a fleet over Flower's messages, and the two apps that Flower starts.

Flower is only a transport here. There is no `Strategy`, and Flower knows no algorithm: the server app runs the same
round loop as every engine, and the client app calls the same `handle`. The caller passes in the functions that the apps
run; see `deployment/app.py`.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spherefed.engines.flower_codec import decode, encode, read_text  # first: its error says how to install Flower

# isort: split
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from spherefed.engines.activity import Activity
from spherefed.messages import Evaluate, Failure, Measure, Reply, Request, Train, max_reply_bytes

POLL_INTERVAL = 0.1
"""Seconds between polls for replies. Flower's own `send_and_receive` waits 3 s."""
EXTRA_TTL = 60.0
"""Seconds that a message stays valid after the deadline for its reply."""


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """Stands for the reply of a node that sent none, or none that can be decoded."""

    cause: str


class Messenger:
    """Sends messages to nodes and receives their replies, for one run. A resumed run uses several Flower runs."""

    def __init__(self, grid: Grid, run: str, reply_types: Mapping[str, type]) -> None:
        self._grid = grid
        self._run = run
        self._reply_types = reply_types

    def nodes(self) -> set[int]:
        """The ids of the nodes that are connected now."""
        return set(self._grid.get_node_ids())

    def ask(
        self, nodes: Sequence[int], message: Any, deadline: float | None, *, max_bytes: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Send the same message to each node; yield (node, reply or DeliveryFailure) in the order of arrival.

        A reply with more than `max_bytes` of tensors is not decoded.
        """
        began = time.monotonic()
        pending = self._push(nodes, message, deadline)
        for node in set(nodes) - set(pending.values()):
            yield node, DeliveryFailure("the message could not be sent to its node")
        late = False
        while pending and not late:
            # Checked before the pull: a pull covers all nodes, and takes minutes if a node dies during its upload.
            late = deadline is not None and time.monotonic() - began > deadline
            for message_id, reply in self._pull(list(pending), max_bytes):
                if message_id in pending:
                    yield pending.pop(message_id), reply
            if pending and not late:
                time.sleep(POLL_INTERVAL)
        for node in pending.values():
            yield node, DeliveryFailure(f"did not answer within {deadline:g} s")

    def _push(self, nodes: Sequence[int], message: Any, deadline: float | None) -> dict[str, int]:
        """Send the message; return the node of each message id."""
        content = encode(message, run=self._run)
        ttl = None if deadline is None else deadline + EXTRA_TTL
        # Whoever knows a message's id, the digest of the message, can fetch and delete it: a random part hides the id.
        messages = [
            Message(content, node, message_type(type(message)), ttl=ttl, group_id=secrets.token_urlsafe())
            for node in nodes
        ]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {message_id: node for message_id, node in zip(ids, nodes, strict=False) if message_id is not None}

    def _pull(self, message_ids: list[str], max_bytes: int | None) -> list[tuple[str, Any]]:
        """The replies that have arrived, by the id of the message: Flower's own error replies do not name a node."""
        try:
            found = list(self._grid.pull_messages(message_ids))
        except Exception as error:  # Flower cannot parse one of the replies: pull one by one to find which
            if len(message_ids) == 1:
                return [(message_ids[0], DeliveryFailure(f"malformed reply: {type(error).__name__}: {error}"))]
            return [pair for message_id in message_ids for pair in self._pull([message_id], max_bytes)]
        return [(reply.metadata.reply_to_message_id, self._decode(reply, max_bytes)) for reply in found]

    def _decode(self, reply: Message, max_bytes: int | None) -> Any:
        if reply.has_error():
            return DeliveryFailure(f"its node failed: {reply.error.reason or f'Flower error {reply.error.code}'}")
        try:
            return decode(reply.content, self._reply_types, max_bytes=max_bytes)
        except Exception as error:  # a site can send any bytes, and they must not end the run
            return DeliveryFailure(f"malformed reply: {type(error).__name__}: {error}")


def message_type(message_class: type) -> str:
    """Flower's type of a message: `train` and `evaluate` are its own, all others are queries with a name."""
    own = {Train: "train", Evaluate: "evaluate"}
    return own.get(message_class, f"query.{message_class.__name__.lower()}")


NO_INDICES = np.zeros(0, dtype=np.int64)


class NodeFleet:
    """A fleet of clients, each on its own node."""

    def __init__(
        self,
        messenger: Messenger,
        num_clients: int,
        locate_clients: Callable[[], Mapping[int, int | str]],
        deadline: float | None,
        max_measure_bytes: int | None = None,
    ) -> None:
        self._messenger = messenger
        self._max_measure_bytes = max_measure_bytes
        self._clients = range(num_clients)
        self._locate_clients = locate_clients
        """Returns each client's node, or the reason why it has none."""
        self._deadline = deadline
        self.activity = Activity()

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def ask(self, clients: Sequence[int], request: Request) -> Iterator[Reply | Failure]:
        """Yield the answers in the order of `clients`, each as soon as all earlier ones have arrived."""
        nodes = self._locate_clients()
        done: dict[int, Reply | Failure] = {}
        client_of: dict[int, int] = {}
        for client in clients:
            node = nodes.get(client, "its node is not connected")
            if isinstance(node, int):
                client_of[node] = client
            else:
                done[client] = Failure(client, node)
        is_measure = isinstance(request, Measure)
        max_bytes = self._max_measure_bytes if is_measure else max_reply_bytes(request)
        unknown = [NO_INDICES] * len(self._clients)  # the server does not know how many examples a site has
        self.activity.begin(request, clients, unknown)
        self.activity.advance(list(done), unknown)
        replies = self._messenger.ask(list(client_of), request, self._deadline, max_bytes=max_bytes)
        for client in clients:
            while client not in done:
                node, reply = next(replies)
                done[client_of[node]] = _check_sender(client_of[node], reply)
                self.activity.advance([client_of[node]], unknown)
            yield done.pop(client)

    def close(self) -> None:
        """Do nothing: the sites start and end their nodes themselves."""


def _check_sender(client: int, reply: Any) -> Reply | Failure:
    """A reply counts only for the client whose node sent it."""
    if isinstance(reply, DeliveryFailure | Failure):
        return Failure(client, reply.cause)
    if not isinstance(reply, Reply):
        return Failure(client, f"answered with a {type(reply).__name__}")
    if reply.client != client:
        return Failure(client, f"answered as client {reply.client}")
    return reply


@dataclass(frozen=True, slots=True)
class MessageContext:
    """What a node receives in addition to the message."""

    run_config: Mapping[str, Any]
    """The configuration of the run."""
    node_config: Mapping[str, Any]
    """The configuration of the node itself."""
    run: str
    """The id of the run, which stays the same when the run is resumed in another Flower run."""


def client_app(
    answer: Callable[[Any, MessageContext], Any],
    message_types: Mapping[str, type],
    *,
    max_bytes: Callable[[Mapping[str, Any]], int],
    rejected: Callable[[str, str, str, Mapping[str, Any]], None],
) -> ClientApp:
    """The app that a SuperNode runs: decode, answer, encode. An error becomes a `Failure` with its cause.

    `max_bytes` of the node config limits the tensors of a message. `rejected` gets the type, the run, the cause and the
    node config of each message that is answered with a `Failure`.
    """
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        run = "?"
        try:
            run = read_text(message.content, "run")
            decoded = decode(message.content, message_types, max_bytes=max_bytes(context.node_config))
            reply = answer(decoded, MessageContext(dict(context.run_config), dict(context.node_config), run))
        except Exception as error:
            client = context.node_config.get("client")
            reply = Failure(client if type(client) is int else -1, f"{type(error).__name__}: {error}")
        if isinstance(reply, Failure):
            rejected(message.metadata.message_type, run, reply.cause, context.node_config)
        return Message(encode(reply), reply_to=message)

    app.train()(handle)
    app.evaluate()(handle)
    for each in message_types.values():
        name = message_type(each)
        if name.startswith("query."):
            app.query(name.removeprefix("query."))(handle)
    return app


def server_app(
    serve: Callable[[Callable[[str], Messenger], Mapping[str, Any]], None], reply_types: Mapping[str, type]
) -> ServerApp:
    """The app that the SuperLink runs. `serve` gets a function that opens a messenger, and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(lambda run: Messenger(grid, run, reply_types), dict(context.run_config))

    return app
