"""Attacks from outside on the open port of a real server, which listens on 127.0.0.2; the operator uses 127.0.0.1."""

import ssl
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from support.machines import Deployment
from support.tricks import CONTROL, header_lines, rejected, send, signature_headers, tricks

OUTSIDE = "127.0.0.2"


def attack(real: Deployment) -> tuple[int, list[str]]:
    """Send all malicious requests without and with a site's signature; how many they are, and which were forwarded."""
    found, reached = tricks(), []
    for who in ("", "site-0"):
        for name, raw in found.items():
            answer = ask_as(real, who, raw)
            if answer and not rejected(answer):
                reached.append(f"{who or 'without a key'}: {name}: {answer[:80]!r}")
    if send((OUTSIDE, real.port), None, found[f"POST {CONTROL}"]):
        reached.append("plain text")
    return 2 * len(found) + 1, reached


def ask_as(real: Deployment, site: str, raw: bytes) -> bytes:
    """The response to a request with the signature of this site, or without one."""
    tls, signed = ssl.create_default_context(cafile=str(real.path / "ca" / "ca.crt")), b""
    if site:
        key = load_ssh_private_key((real.path / "sites" / site / "site.key").read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        signed = header_lines(signature_headers(key, datetime.now(UTC)))
    return send((OUTSIDE, real.port), tls, raw, signed)
