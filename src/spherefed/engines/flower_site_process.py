"""A client app that stays loaded next to its SuperNode and answers one message after another.

Flower itself starts a new process for each message. That process imports torch and loads the data each time, and a
round takes 21 s instead of 5 s. Flower has no public interface for another executor. So this module calls Flower's
internals; it is a separate file for that reason, and a test checks it against the pinned release. The code that a
server sends with a run (the FAB) is never installed or run: a site executes only the code that it has installed itself.
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

POLL_INTERVAL = 0.05
ACQUIRE_METHODS = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def serve_node(app: ClientApp, address: str, secret: bytes, keep_running: Callable[[], bool]) -> None:
    """Serve the SuperNode at this loopback address while `keep_running()`; the secret authenticates this process."""
    client = _connect(address, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE_METHODS))
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP], agentapp_fab_hashes=[])
    lock = Lock()
    try:
        while keep_running():
            task = client.AcquireTask(request)
            if task.HasField("task") and task.token:
                # One thread per task: the message of a killed run never arrives completely, and its thread waits for
                # hours. The lock still lets only one thread at a time run the app.
                connection = _connect(address, RuntimeTokenHttpInterceptor(task.token))
                Thread(target=_serve, args=(app, connection, lock), daemon=True).start()
            time.sleep(POLL_INTERVAL)
    finally:
        client.close()


def _serve(app: ClientApp, client: RuntimeHttpClient, lock: Lock) -> None:
    """Pull one message, run the app, push the reply; report errors to the SuperNode."""
    message: Message | None = None
    context: Context | None = None
    status, details = SubStatus.FAILED, "the client app failed"
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, _, _ = flower.pull_task_input(client)
        with lock:
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
        insecure=True,  # loopback on the site's own machine; the SuperNode uses TLS for the network
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), credential],
        retry_invoker=make_simple_http_retry_invoker(),
    )
