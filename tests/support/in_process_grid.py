"""Flower without processes: the real apps exchange real messages, each turned into bytes and back on the way."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from spherefed.deployment import app
from spherefed.engines.flower import Messenger

Spoil = Callable[[Message, Message], Message | None]
"""The question and the answer → what arrives; None: nothing does."""


class InProcessGrid(Grid):
    """A grid whose nodes answer as soon as they are asked."""

    def __init__(self, configs: Iterable[dict[str, Any]], run_config: dict[str, Any]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.contexts = {
            101 + index: Context(
                run_id=1,
                node_id=101 + index,
                node_config=config,
                state=RecordDict(),
                run_config=run_config,
                series_id=0,
            )
            for index, config in enumerate(configs)
        }
        self.spoil: dict[int, Spoil] = {}
        """What becomes of a node's answers on the way."""
        self.offline: set[int] = set()
        self.asked: list[tuple[int, str]] = []
        self._ready: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for index, message in enumerate(messages):
            node = message.metadata.dst_node_id
            name = f"m{len(self.asked)}.{index}"
            message.metadata.__dict__["_message_id"] = name
            self.asked.append((node, message.metadata.message_type))
            ids.append(name)
            sent = message_from_proto(message_to_proto(message))
            try:
                answer: Message | None = app.client_app(sent, self.contexts[node])
            except Exception as error:
                answer = Message(Error(code=2, reason=repr(error)), reply_to=sent)
            assert answer is not None
            if node in self.spoil:
                answer = self.spoil[node](sent, answer)
            if answer is not None and node not in self.offline:
                self._ready[name] = message_from_proto(message_to_proto(answer))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._ready.pop(name) for name in message_ids if name in self._ready]

    def open(self, run: str) -> Messenger:
        return Messenger(self, run, app.REPLY_TYPES)
