"""The HTTP requests of Flower's SuperNodes: routes, headers and the check of their signature.

The front of a server (`deployment/front.py`) forwards nothing else. The names are imported from Flower: with a release
that renames one, this module fails to import and the server does not start.
"""

import binascii
from base64 import b64decode
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
    VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY,
)
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.routers.fleet.router import router

MEDIA_TYPE = PROTOBUF_MEDIA_TYPE.encode()
REQUEST_HEADERS = frozenset(
    name.lower().encode()
    for name in (
        "accept",
        "content-type",
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
        FLWR_COMPONENT_NAME_METADATA_KEY,
        FLWR_PACKAGE_NAME_METADATA_KEY,
        FLWR_PACKAGE_VERSION_METADATA_KEY,
    )
)
RESPONSE_HEADERS = frozenset(
    name.lower().encode()
    for name in ("content-length", "content-type", "retry-after", VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY)
)
ROUTES_WITHOUT_KEY = frozenset({"/v1/fleet/register-node", "/v1/fleet/unregister-node"})
"""Only SuperNodes without a key call these; a SuperLink with node authentication rejects them."""


def node_routes() -> frozenset[tuple[bytes, bytes]]:
    """Method and path of the routes that a SuperNode with a key calls, from Flower's router."""
    found: list[Any] = list(router.routes)
    return frozenset(
        (method.encode(), route.path.encode())
        for route in found
        for method in route.methods
        if route.path not in ROUTES_WITHOUT_KEY
    )


def signer(headers: Mapping[bytes, bytes], known: Collection[bytes]) -> bytes | None:
    """The known public key (PEM) that signed these headers within Flower's time tolerance; None if there is none.

    Unknown keys are rejected before they are parsed, so the key parser never sees the bytes of an unknown client.
    """
    try:
        public_key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        timestamp = headers[TIMESTAMP_HEADER.encode()]
        age = (now() - datetime.fromisoformat(timestamp.decode("ascii"))).total_seconds()
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None
    if public_key not in known or not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        return None
    return public_key if verify_signature(bytes_to_public_key(public_key), timestamp, signature) else None
