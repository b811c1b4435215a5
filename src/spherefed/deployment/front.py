"""The front of a server: a reverse proxy on the only open port, with TLS and limits on connections.

The SuperLink serves sites and control commands on one port and does not authenticate commands. It therefore listens on
loopback, and the front forwards only signed requests of sites to it.
"""

import asyncio
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from spherefed.deployment.forwarding import Forwarder, Streams
from spherefed.deployment.front_rules import Limits, Rules
from spherefed.errors import ConfigError

Address = tuple[str, int]
TLS_SHUTDOWN_SECONDS = 2.0
LOG_LINES_PER_MINUTE = 20


@contextmanager
def front(
    listen: Address,
    superlink: Address,
    rules: Rules,
    *,
    tls: ssl.SSLContext,
    superlink_tls: ssl.SSLContext | None,
    announce: Callable[[str], None],
    limits: Limits | None = None,
) -> Iterator[Callable[[], bool]]:
    """Serve in a thread until the end of the block; yield a function that tells whether the thread still runs."""
    limits = limits or Limits()
    listener = _listener(listen)

    async def connect() -> Streams:
        return await asyncio.open_connection(*superlink, ssl=superlink_tls)

    forwarder = Forwarder(rules, limits, connect, f"{superlink[0]}:{superlink[1]}", _rate_limited(announce))
    loop = asyncio.new_event_loop()
    serving = loop.create_task(_Server(forwarder, limits, tls).accept(listener))
    thread = threading.Thread(target=_run, args=(loop, serving), name="front", daemon=True)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        with suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        listener.close()


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 with the server's certificate; HTTP/1.1 is the only protocol offered (no HTTP/2)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _listener(listen: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    try:
        listener = socket.create_server(listen, family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen[0]} port {listen[1]}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _run(loop: asyncio.AbstractEventLoop, serving: "asyncio.Task[None]") -> None:
    try:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
    finally:
        loop.close()


@dataclass(eq=False, slots=True)
class _Server:
    """Accepts connections and counts the open ones by address."""

    forwarder: Forwarder
    limits: Limits
    tls: ssl.SSLContext
    open: Counter[str] = field(default_factory=Counter)
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; close those above the limits before the TLS handshake."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(listener)
                except OSError:  # out of file descriptors, or the client disconnected
                    await asyncio.sleep(0.05)
                    continue
                address = str(peer[0])
                if (
                    len(self.tasks) >= self.limits.connections
                    or self.open[address] >= self.limits.connections_per_address
                ):
                    connection.close()
                    continue
                self.open[address] += 1
                task = loop.create_task(self._handle(connection, address))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _handle(self, connection: socket.socket, address: str) -> None:
        """Serve one connection, from the TLS handshake until it is closed."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._handshake(connection)
            await self.forwarder.serve((reader, writer), address)
        except (OSError, EOFError):
            pass  # the client disconnected, timed out, or does not use TLS
        finally:
            self.open[address] -= 1
            if not self.open[address]:
                del self.open[address]
            if writer is None:
                connection.close()
            else:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _handshake(self, connection: socket.socket) -> Streams:
        loop = asyncio.get_running_loop()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # send short responses at once
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self.tls,
            ssl_handshake_timeout=self.limits.handshake_seconds,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _rate_limited(announce: Callable[[str], None]) -> Callable[[str], None]:
    """Limit the lines per minute, so that attackers cannot fill the disk; later announce how many were left out."""
    began, count = time.monotonic(), 0

    def log(line: str) -> None:
        nonlocal began, count
        if time.monotonic() - began > 60:
            if count > LOG_LINES_PER_MINUTE:
                announce(f"rejected {count - LOG_LINES_PER_MINUTE} more requests")
            began, count = time.monotonic(), 0
        count += 1
        if count <= LOG_LINES_PER_MINUTE:
            announce(line)

    return log
