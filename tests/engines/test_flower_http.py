"""The HTTP requests of SuperNodes: whose signature counts, and which routes they call."""

from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.task_identity import TaskIdentity

from spherefed.deployment.certificates import CURVE
from spherefed.deployment.handshake import Handshake
from spherefed.engines import flower_http
from spherefed.engines.flower import Messenger
from support.tricks import signature_headers


def test_only_a_known_key_with_a_fresh_signature_counts() -> None:
    key, other = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    now = datetime.now(UTC)
    good = signature_headers(key, now)
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    known = {pem}
    assert flower_http.signer(good, known) == pem
    bad = {
        "another key": signature_headers(other, now),
        "another's signature": signature_headers(other, now) | {b"flwr-public-key": good[b"flwr-public-key"]},
        "a signature of something else": signature_headers(key, now, sign=b"hello"),
        "an old one": signature_headers(key, now - timedelta(minutes=6)),
        "one of the future": signature_headers(key, now + timedelta(minutes=1)),
        "a time without a zone": signature_headers(key, now.replace(tzinfo=None)),
        "no time": good | {b"flwr-timestamp": b"now"},
        "no base64": good | {b"flwr-signature": b"\xff!"},
        "an empty signature": good | {b"flwr-signature": b""},
        **{f"without {name!r}": {n: v for n, v in good.items() if n != name} for name in good},
    }
    assert {name: flower_http.signer(headers, known) for name, headers in bad.items()} == dict.fromkeys(bad)
    assert flower_http.signer(good, set()) is None


def test_routes_are_those_that_a_supernode_with_a_key_calls() -> None:
    """Compared with another table of Flower, by which it decodes requests."""
    fleet = {(method, path) for method, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    without = {("POST", "/v1/fleet/register-node"), ("POST", "/v1/fleet/unregister-node")}
    assert {(m.decode(), p.decode()) for m, p in flower_http.node_routes()} == fleet - without


def pushed(node: int, *senders: int) -> bytes:
    messages = [ProtoMessage(metadata=Metadata(src_node_id=sender, reply_to_message_id="m")) for sender in senders]
    return PushMessagesRequest(node=Node(node_id=node), messages_list=messages).SerializeToString()


def test_a_site_replies_for_itself_only() -> None:
    """Flower would store a reply in the name of another site, and an instruction in that of the server, node 1."""
    server, own, other = 1, 7, 8
    assert flower_http.replies_for_itself(pushed(own, own))
    for senders in ([other], [server], [own, other], [own, server], [0]):
        assert not flower_http.replies_for_itself(pushed(own, *senders))
    assert not flower_http.replies_for_itself(pushed(server, server))
    assert not flower_http.replies_for_itself(b"\xff no message")
    assert (b"POST", flower_http.PUSH_MESSAGES) in flower_http.node_routes()


def test_the_id_of_a_message_cannot_be_computed_from_that_of_another_node() -> None:
    """An id is a digest of the message; except for receiver and time, a site has the same message."""
    sent: list[Message] = []

    class Sending:
        def push_messages(self, messages: list[Message]) -> list[str]:
            sent.extend(messages)
            return [str(message.metadata.dst_node_id) for message in messages]

    messenger = Messenger(Sending(), "run", {})  # type: ignore[arg-type]
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    messenger._push([7, 8], Handshake(), 1.0)
    messenger._push([7], Handshake(), 1.0)
    hidden = {message.metadata.group_id for message in sent}
    assert len(hidden) == len(sent) == 3
    assert all(len(each) > 40 for each in hidden)
    before = sent[0].object_id
    sent[0].metadata.__dict__["_group_id"] = "0" * 43
    assert sent[0].object_id != before
