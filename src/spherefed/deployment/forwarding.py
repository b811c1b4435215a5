"""One client connection of the front: check its requests, stream them to the SuperLink, return the responses."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import h11

from spherefed.deployment.front_rules import Limits, Rules, check_request, request_to_superlink, response_to_client

READ_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 3.0
"""How long an idle connection to the SuperLink may be used again; Flower's server closes it after 5 s."""
LINGER_SECONDS = 2.0
"""How long the front keeps reading from a rejected client, so that the client can read the response."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpConnection:
    """One side of an HTTP/1.1 connection over asyncio streams."""

    def __init__(self, streams: Streams, role: type[h11.CLIENT] | type[h11.SERVER], max_head: int) -> None:
        self.reader, self.writer = streams
        self.state = h11.Connection(role, max_incomplete_event_size=max_head)
        self.last_event = time.monotonic()

    async def receive(self, seconds: float) -> h11.Event | type[h11.PAUSED]:
        """The next event; raises TimeoutError if it is not complete after this time."""
        async with asyncio.timeout(seconds):
            while True:
                event = self.state.next_event()
                if event is not h11.NEED_DATA:
                    self.last_event = time.monotonic()
                    return event  # type: ignore[return-value] # mypy does not narrow h11's sentinel classes
                self.state.receive_data(await self.reader.read(READ_BYTES))

    async def send(self, event: h11.Event, seconds: float) -> None:
        if data := self.state.send(event):
            self.writer.write(data)
            async with asyncio.timeout(seconds):
                await self.writer.drain()

    @property
    def between_requests(self) -> bool:
        return self.state.our_state is h11.DONE and self.state.their_state is h11.DONE

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the last one is answered, and the peer has not closed the connection."""
        return (
            self.between_requests
            and not self.reader.at_eof()
            and time.monotonic() - self.last_event < KEEP_ALIVE_SECONDS
        )


class _Upstream:
    """One client's connection to the SuperLink: opened on demand, and reused for a short time."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]], limits: Limits) -> None:
        self._connect, self._limits = connect, limits
        self._connection: HttpConnection | None = None

    async def open(self) -> HttpConnection:
        if self._connection is not None and self._connection.reusable:
            self._connection.state.start_next_cycle()
            return self._connection
        self.close()
        async with asyncio.timeout(self._limits.handshake_seconds):
            self._connection = HttpConnection(await self._connect(), h11.CLIENT, self._limits.head)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.writer.close()


class Forwarder:
    """Serves client connections by the rules, with one connection to the SuperLink for each."""

    def __init__(
        self,
        rules: Rules,
        limits: Limits,
        connect: Callable[[], Awaitable[Streams]],
        host: str,
        log: Callable[[str], None],
    ) -> None:
        self._rules, self._limits, self._connect, self._host, self._log = rules, limits, connect, host, log

    async def serve(self, streams: Streams, peer: str) -> None:
        """Serve the requests of one client until it disconnects, violates a rule or exceeds a time limit."""
        client = HttpConnection(streams, h11.SERVER, self._limits.head)
        upstream = _Upstream(self._connect, self._limits)
        try:
            while True:
                request = await client.receive(self._limits.head_seconds)
                if not isinstance(request, h11.Request):
                    return
                if rejected := check_request(request, self._rules, self._limits):
                    self._log(f"rejected {peer}: {rejected.cause}: {_request_line(request)}")
                    await self._reject(client, rejected.status)
                    return
                async with asyncio.timeout(self._limits.request_seconds):
                    await self._forward(request, client, upstream, peer)
                if not client.between_requests:
                    return
                client.state.start_next_cycle()
        except h11.RemoteProtocolError as error:
            self._log(f"rejected {peer}: {str(error)[:80]}")
            await self._reject(client, error.error_status_hint)
        finally:
            upstream.close()

    async def _forward(self, request: h11.Request, client: HttpConnection, upstream: _Upstream, peer: str) -> None:
        """Forward one request and its response. After an error, `client.between_requests` is False."""
        limits, head = self._limits, request_to_superlink(request, self._rules, self._host)
        check, checked = self._rules.body_checks.get(request.target), b""
        try:
            if check is not None:
                while isinstance(event := await client.receive(limits.body_idle_seconds), h11.Data):
                    checked += event.data
                if not check(checked):
                    self._log(f"rejected {peer}: a message in the name of another: {_request_line(request)}")
                    await self._reject(client, 403)
                    return
            superlink = await upstream.open()
            await superlink.send(head, limits.body_idle_seconds)
            if check is not None:
                await superlink.send(h11.Data(data=checked), limits.body_idle_seconds)
            else:
                while isinstance(event := await client.receive(limits.body_idle_seconds), h11.Data):
                    await superlink.send(h11.Data(data=event.data), limits.body_idle_seconds)
            await superlink.send(h11.EndOfMessage(), limits.body_idle_seconds)
            while isinstance(response := await superlink.receive(limits.response_seconds), h11.InformationalResponse):
                pass
            assert isinstance(response, h11.Response)
        except (OSError, h11.RemoteProtocolError) as error:
            # TimeoutError is an OSError. If the client caused the error, it may be unable to receive this response.
            await self._reject(client, 504 if isinstance(error, TimeoutError) else 502)
            return
        await client.send(response_to_client(response, self._rules), limits.body_idle_seconds)
        while isinstance(event := await superlink.receive(limits.body_idle_seconds), h11.Data):
            await client.send(h11.Data(data=event.data), limits.body_idle_seconds)
        await client.send(h11.EndOfMessage(), limits.body_idle_seconds)

    async def _reject(self, client: HttpConnection, status: int) -> None:
        """Send this status without a body; the caller then closes the connection."""
        if client.state.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        headers = [(b"Content-Length", b"0"), (b"Connection", b"close")]
        reason = HTTPStatus(status).phrase
        await client.send(h11.Response(status_code=status, reason=reason, headers=headers), LINGER_SECONDS)
        await client.send(h11.EndOfMessage(), LINGER_SECONDS)
        if client.state.their_state is h11.SEND_BODY:
            # Closing with unread bytes would reset the connection before the client reads the response.
            with suppress(TimeoutError, h11.RemoteProtocolError):
                async with asyncio.timeout(LINGER_SECONDS):
                    while isinstance(await client.receive(LINGER_SECONDS), h11.Data):
                        pass


def _request_line(request: h11.Request) -> str:
    """The request line for the log, shortened and with control characters escaped."""
    return f"{request.method[:12]!r} {request.target[:60]!r}"
