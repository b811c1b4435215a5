"""A client app that stays loaded beside its SuperNode and serves one message after the other.

Flower by itself starts a process per message, which imports torch and loads the data each time: 21 s a round instead
of 5. There is no public interface for another executor, so this file calls Flower's internals, is kept apart for that,
and is tested against the pinned release. What a server wraps into its run as code (the FAB) is never installed nor
run: a site executes only what it has installed itself.
"""

import time
from collections.abc import Callable
from logging import ERROR, INFO
from threading import Lock, Thread
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.superexec_auth import SuperExecAuthHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp as flower

POLL = 0.05
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def stay(app: ClientApp, address: str, secret: bytes, going_on: Callable[[], bool]) -> None:
    """Serve the SuperNode at this loopback address until `going_on` says no; the secret proves that we belong to it."""
    client = _connect(address, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE))
    question = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP], agentapp_fab_hashes=[])
    turn = Lock()
    try:
        while going_on():
            task = client.AcquireTask(question)
            if task.HasField("task") and task.token:
                # A thread for each: the message of a run that was killed never arrives whole, and whoever waits for
                # it waits for hours. They answer one after the other all the same.
                connection = _connect(address, RuntimeTokenHttpInterceptor(task.token))
                Thread(target=_serve, args=(app, connection, turn), daemon=True).start()
            time.sleep(POLL)
    finally:
        client.close()


def _serve(app: ClientApp, client: RuntimeHttpClient, turn: Lock) -> None:
    """One message: pull it, answer it, push the answer; what goes wrong is told to the SuperNode."""
    message: Message | None = None
    context: Context | None = None
    status, details = SubStatus.FAILED, "the client app failed"
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, _, _ = flower.pull_task_input(client)
        with turn:
            log(INFO, "answering %s", message.metadata.message_type)
            reply: Message | None = app(message, context)
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        details = f"{type(error).__name__}: {error}"
        log(ERROR, "the client app failed", exc_info=error)
        reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message) if message else None
    try:
        if reply is not None and context is not None:
            flower.push_message(client, reply, context)
        flower.push_task_output(client, context, status, details)
    finally:
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def _connect(address: str, credential: Any) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback of the site's own machine; what leaves it goes through the SuperNode's TLS
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), credential],
        retry_invoker=make_simple_http_retry_invoker(),
    )
