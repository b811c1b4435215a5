"""The HTTP requests of Flower's SuperNodes: routes, headers and the check of their signature.

The front of a server (`deployment/front.py`) forwards nothing else. The names are imported from Flower: with a release
that renames one, this module fails to import and the server does not start.
"""

import binascii
from base64 import b64decode
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID, SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PushMessagesRequest
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
from google.protobuf.message import DecodeError

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

PUSH_MESSAGES = b"/v1/fleet/push-messages"


def node_routes() -> frozenset[tuple[bytes, bytes]]:
    """Method and path of the routes that a SuperNode with a key calls, from Flower's router."""
    found: list[Any] = list(router.routes)
    return frozenset(
        (method.encode(), route.path.encode())
        for route in found
        for method in route.methods
        if route.path not in ROUTES_WITHOUT_KEY
    )


def replies_for_itself(body: bytes) -> bool:
    """Whether every message in this body for `PUSH_MESSAGES` is a reply of the node that sends the request.

    Flower compares only `node` with the key. With another sender in a message, a site could reply for the other sites,
    and instruct them in the name of the server.
    """
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    senders = {message.metadata.src_node_id for message in request.messages_list}
    return senders <= {request.node.node_id} - {SUPERLINK_NODE_ID}


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
