"""The front of a server: which requests it forwards to the SuperLink."""

import hashlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from spherefed.engines import flower_http
from support.fronts import HOST, QUICK, SITE_HEADERS, Front, post, rules, running, write_credentials
from support.tricks import CONTROL, FLEET, rejected, send, status, tricks

TRICKS = tricks()


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_credentials(tmp_path_factory.mktemp("credentials"))


@pytest.fixture(scope="module")
def open_front(credentials: Path) -> Iterator[Front]:
    """A front that accepts every signature, so that it rejects requests for other reasons only."""
    with running(credentials) as found:
        yield found


@pytest.mark.parametrize("name", TRICKS)
def test_a_malicious_request_is_not_forwarded(name: str, open_front: Front) -> None:
    before = len(open_front.superlink.received)
    answer = open_front.send(TRICKS[name])
    assert rejected(answer), answer[:200]
    assert len(open_front.superlink.received) == before


def test_key_signature_and_body_are_forwarded_unchanged_and_other_headers_are_dropped(open_front: Front) -> None:
    connection = open_front.connect()
    more = {"flwr-timestamp": "2026-01-01T00:00:00+00:00", "X-Forwarded-For": "10.0.0.1", "Host": "x.example"}
    body = bytes(range(256))
    connection.request("POST", FLEET, body=body, headers=SITE_HEADERS | more)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, hashlib.sha256(body).hexdigest().encode())
    assert {name.lower() for name in answer.headers} == {"content-type", "content-length"}
    method, path, headers, received = open_front.superlink.received[-1]
    assert (method, path, received) == ("POST", FLEET, body)
    assert headers == {
        "host": f"{HOST}:{open_front.superlink.port}",
        "content-length": "256",
        "content-type": "application/protobuf",
        "flwr-public-key": "k",
        "flwr-signature": "s",
        "flwr-timestamp": more["flwr-timestamp"],
    }
    connection.close()


def test_a_connection_serves_one_request_after_the_other(open_front: Front) -> None:
    connection = open_front.connect()
    for number in range(20):
        body = str(number).encode()
        assert post(connection, body) == (200, hashlib.sha256(body).hexdigest().encode())
    connection.close()


def test_long_bodies_are_forwarded_both_ways_up_to_the_limit(open_front: Front) -> None:
    connection = open_front.connect()
    body = b"long" + bytes(QUICK.body - 4)
    assert post(connection, body) == (200, hashlib.sha256(body).hexdigest().encode() * 20_000)
    seen = len(open_front.superlink.received)
    connection.close()
    raw = f"POST {FLEET} HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\nContent-Length: {QUICK.body + 1}"
    assert status(open_front.send(f"{raw}\r\n\r\nabc".encode())) == 413
    assert len(open_front.superlink.received) == seen


def test_a_message_in_the_name_of_another_node_is_not_forwarded(credentials: Path) -> None:
    path = flower_http.PUSH_MESSAGES.decode()
    own, of_the_server = (
        PushMessagesRequest(
            node=Node(node_id=7), messages_list=[Message(metadata=Metadata(src_node_id=sender))]
        ).SerializeToString()
        for sender in (7, SUPERLINK_NODE_ID)
    )
    with running(credentials) as found:
        connection = found.connect()
        assert post(connection, own, path) == (200, hashlib.sha256(own).hexdigest().encode())
        assert post(connection, of_the_server, path) == (403, b"")
        assert post(connection, bytes(QUICK.checked_body + 1), path) == (413, b"")
        connection.close()
        assert [body for *_, body in found.superlink.received] == [own]
        assert "in the name of another" in found.lines[0]


def test_bytes_after_a_body_are_checked_as_a_new_request(open_front: Front) -> None:
    """The SuperLink never interprets them."""
    seen = len(open_front.superlink.received)
    head = f"POST {FLEET} HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\nContent-Length: 1\r\n\r\n"
    answer = open_front.send(f"{head}aPOST {CONTROL} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert status(answer) == 200
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 404 " in answer
    assert [(path, body) for _, path, _, body in open_front.superlink.received[seen:]] == [(FLEET, b"a")]


def test_plain_text_and_old_tls_get_no_answer(open_front: Front) -> None:
    assert send(open_front.address, None, TRICKS[f"POST {CONTROL}"]) == b""
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    assert send(open_front.address, old, TRICKS[f"POST {CONTROL}"]) == b""


def test_http2_is_not_negotiated(open_front: Front, credentials: Path) -> None:
    for offered in (["h2"], ["h2", "http/1.1"]):
        context = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
        context.set_alpn_protocols(offered)
        with (
            socket.create_connection(open_front.address) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as connection,
        ):
            assert connection.selected_alpn_protocol() != "h2"


def test_the_log_of_rejections_is_limited_in_lines_and_length(credentials: Path) -> None:
    with running(credentials) as found:
        for _ in range(15):
            found.send(b"POST /\x1b[31m" + b"x" * 500 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            found.send(TRICKS["POST /" + "health"])
        assert len(found.lines) == 20
        assert all(len(line) < 160 and line.isprintable() for line in found.lines), found.lines


def test_nothing_is_forwarded_without_a_valid_signature(credentials: Path) -> None:
    with running(credentials, allowed=rules(authentic=False)) as found:
        connection = found.connect()
        assert post(connection) == (401, b"")
        connection.close()
        assert found.superlink.received == []
