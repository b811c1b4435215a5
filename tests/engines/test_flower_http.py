"""The HTTP requests of SuperNodes: whose signature counts, and which routes they call."""

from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from spherefed.deployment.certificates import CURVE
from spherefed.engines import flower_http
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
