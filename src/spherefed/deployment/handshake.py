"""The handshake before the first round: which sites are connected, as which clients, and whether they agree.

Without it, a site with another class order, normalisation or release would train to the end and make the model wrong,
without any error. So every site reports its properties, and the run starts only if all are equal.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from spherefed.errors import FederationError
from spherefed.files import parse_json
from spherefed.messages import Failure
from spherefed.server.validation import printable
from spherefed.tensors import Tensors

T = TypeVar("T")
MAX_INPUT_SIDE = 1 << 16
MAX_SITE_NAME = 80


@dataclass(frozen=True, slots=True)
class Handshake:
    """Asks a site for its client number and its properties."""


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """A site's reply to the handshake."""

    client: int
    site: str
    properties: str
    """`SiteProperties` as JSON."""
    left_out: int = 0
    """Examples of rare classes, which the site leaves out of its statistics."""


@dataclass(frozen=True, slots=True)
class LoadDerived:
    """Tells a site to use this derived state, because its own differs (another CPU rounds differently)."""

    derived_state: Tensors


@dataclass(frozen=True, slots=True)
class DerivedLoaded:
    """A site's reply to `LoadDerived`, with the digest of the state that it uses now."""

    client: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteProperties:
    """The values that must be equal at the server and at all sites."""

    version: str = field(metadata={"label": "package version"})
    experiment: str = field(metadata={"label": "experiment digest"})
    classes: tuple[str, ...] = field(metadata={"label": "class list"})
    input_shape: tuple[int, ...] = field(metadata={"label": "input shape"})
    normalization: str = field(metadata={"label": "normalisation"})
    components: str = field(metadata={"label": "own components"})
    frozen_encoder: str = field(metadata={"label": "digest of the frozen encoder"})
    """Empty if the encoder is trained. It is never sent: a site with other weights cannot take part."""
    derived_state: str = field(metadata={"label": "head"})
    """Digest of the derived state (fixed head, initial private part). A site that differs only in this is sent it."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "SiteProperties":
        """Parse a site's text; a ValueError says what is wrong with it."""
        plain = parse_json(text)
        wanted = {f.name for f in fields(SiteProperties)}
        if not isinstance(plain, dict) or plain.keys() != wanted:
            raise ValueError(f"must have exactly the keys {sorted(wanted)}")
        if not all(isinstance(plain[name], list) for name in ("classes", "input_shape")):
            raise ValueError("classes and input_shape must be lists")
        lists = {name: tuple(plain[name]) for name in ("classes", "input_shape")}
        texts = [*lists["classes"], *(value for name, value in plain.items() if name not in lists)]
        sides = lists["input_shape"]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("classes, versions and digests must be strings")
        if not all(type(side) is int and 0 < side < MAX_INPUT_SIDE for side in sides):
            raise ValueError(f"input_shape must be a list of positive integers, got {list(sides)!r:.80}")
        return SiteProperties(**plain | lists)


@dataclass(frozen=True, slots=True)
class Member:
    """A node that answered the handshake."""

    node: int
    client: int
    site: str
    properties: SiteProperties
    left_out: int = 0
    """Examples that the site leaves out of its statistics."""

    @property
    def description(self) -> str:
        return f"site {self.site!r} (client {self.client})"


@dataclass(frozen=True, slots=True)
class RejectedNode:
    """A connected node that does not take part."""

    cause: str
    client: int = -1
    """The client that it says it is; -1 if unknown."""
    site: str = ""
    """The name that it gives; empty if unknown."""
    retry_at: float = math.inf
    """When to try the handshake again, in seconds of `time.monotonic`; a node that was only silent may recover."""


def identify_node(node: int, reply: Any) -> Member | RejectedNode:
    """The member that this reply describes, or why the reply is unusable."""
    if not isinstance(reply, HandshakeReply):
        cause = getattr(reply, "cause", f"answered the handshake with a {type(reply).__name__}")
        return RejectedNode(printable(cause), reply.client if isinstance(reply, Failure) else -1)
    site = printable(reply.site)[:MAX_SITE_NAME]
    try:
        return Member(node, reply.client, site, SiteProperties.from_json(reply.properties), reply.left_out)
    except (ValueError, TypeError) as error:
        return RejectedNode(printable(f"malformed properties: {error}"), reply.client, site)


def differences(given: SiteProperties, expected: SiteProperties) -> list[str]:
    """One line for each property that differs, except the derived state."""
    return [
        f"{f.metadata['label']} is {_short(getattr(given, f.name))}, expected {_short(getattr(expected, f.name))}"
        for f in fields(SiteProperties)
        if f.name != "derived_state" and getattr(given, f.name) != getattr(expected, f.name)
    ]


def majority(members: Mapping[int, Member], value_of: Callable[[SiteProperties], T]) -> T:
    """The most frequent value among the sites (the first of equals); used if the server has no data of its own."""
    return Counter(value_of(m.properties) for _, m in sorted(members.items())).most_common(1)[0][0]


def assign_clients(found: Mapping[int, Member | RejectedNode]) -> dict[int, Member]:
    """The node of each client; a FederationError lists the nodes that were rejected or are duplicates."""
    faults = [entry.cause for _, entry in sorted(found.items()) if isinstance(entry, RejectedNode)]
    members: dict[int, Member] = {}
    for _, entry in sorted(found.items()):
        if isinstance(entry, RejectedNode):
            continue
        if entry.client in members:
            faults.append(f"{entry.description} and {members[entry.client].description} are the same client")
        else:
            members[entry.client] = entry
    if faults:
        raise FederationError("the handshake failed: " + "; ".join(faults))
    return members


def check_properties(members: Mapping[int, Member], expected: SiteProperties) -> None:
    """Raise a FederationError that lists each site with the properties in which it differs."""
    faults = [
        f"{member.description}: {'; '.join(lines)}"
        for _, member in sorted(members.items())
        if (lines := differences(member.properties, expected))
    ]
    if faults:
        raise FederationError("the sites do not agree: " + " | ".join(faults))


def _short(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return printable(text if len(text) <= 80 else f"{text[:77]}…")
