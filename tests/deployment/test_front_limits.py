"""The front of a server: limits of time and of connections, and failures of the SuperLink."""

import http.client
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spherefed.deployment.front import front, server_tls
from spherefed.deployment.programs import free_port
from spherefed.errors import ConfigError
from support.fronts import HOST, QUICK, SITE_HEADERS, post, rules, running, write_credentials
from support.tricks import FLEET, site_request, status


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_credentials(tmp_path_factory.mktemp("credentials"))


@pytest.mark.slow
def test_a_slow_request_times_out_while_others_are_served(credentials: Path) -> None:
    with running(credentials) as found:
        slow = found.tls.wrap_socket(socket.create_connection(found.address, timeout=10), server_hostname=HOST)
        silent = socket.create_connection(found.address, timeout=10)
        began = time.monotonic()
        connection = found.connect()
        with slow, silent:
            for byte in b"POST":
                slow.send(bytes([byte]))
                time.sleep(0.1)
                assert post(connection)[0] == 200
            assert slow.recv(1) == b""
            assert time.monotonic() - began < 2 * QUICK.head_seconds
            assert silent.recv(1) == b""
            assert time.monotonic() - began < 2 * QUICK.handshake_seconds
        connection.close()


@pytest.mark.slow
def test_a_slow_body_times_out(credentials: Path) -> None:
    with running(credentials) as found:
        answer = found.send(site_request().replace(b"Content-Length: 0", b"Content-Length: 10") + b"abc")
        assert status(answer) == 504
        assert found.superlink.received == []


def test_connections_are_counted_for_each_address(credentials: Path) -> None:
    with running(credentials, replace(QUICK, connections_per_address=2)) as found:
        held = [socket.create_connection(found.address, timeout=10) for _ in range(2)]
        time.sleep(0.1)
        with socket.create_connection(found.address, timeout=QUICK.handshake_seconds / 2) as third:
            assert third.recv(1) == b""  # closed at once, before the handshake times out
        for each in held:
            each.close()
        time.sleep(0.1)
        connection = found.connect()
        assert post(connection)[0] == 200
        connection.close()


def test_a_missing_response_of_the_superlink_is_a_gateway_timeout(credentials: Path) -> None:
    with running(credentials) as found:
        found.superlink.pause = 1.5
        connection = found.connect()
        assert post(connection) == (504, b"")
        connection.close()
        found.superlink.pause = 0.0
        connection = found.connect()
        assert post(connection)[0] == 200
        connection.close()


def test_the_connection_to_the_superlink_closes_with_the_clients(credentials: Path) -> None:
    with running(credentials) as found:
        found.superlink.pause = 0.3
        for _ in range(3):
            connection = found.connect()
            connection.request("POST", FLEET, body=b"long", headers=SITE_HEADERS)
            connection.close()
        end = time.monotonic() + 10
        while len(found.superlink.received) < 3 or found.superlink.open:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_without_a_superlink_sites_get_a_bad_gateway_error(credentials: Path) -> None:
    address = (HOST, free_port())
    tls = server_tls(str(credentials / "server.crt"), str(credentials / "server.key"))
    with front(address, (HOST, 1), rules(), tls=tls, superlink_tls=None, announce=lambda _: None):
        client = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        connection = http.client.HTTPSConnection(*address, context=client, timeout=10)
        assert post(connection) == (502, b"")
        connection.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=1)


def test_a_port_in_use_is_a_config_error(credentials: Path) -> None:
    tls = server_tls(str(credentials / "server.crt"), str(credentials / "server.key"))
    with socket.create_server((HOST, 0)) as taken:
        address = taken.getsockname()
        with (
            pytest.raises(ConfigError, match=f"port {address[1]}: Address already in use"),
            front(address, (HOST, 1), rules(), tls=tls, superlink_tls=None, announce=lambda _: None),
        ):
            pass
