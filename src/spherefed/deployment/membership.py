"""The sites of a run: a handshake before the first round, and another with each node that connects later."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spherefed.assembly import Assembly
from spherefed.deployment.handshake import (
    DerivedLoaded,
    Handshake,
    LoadDerived,
    Member,
    RejectedNode,
    SiteProperties,
    assign_clients,
    check_properties,
    differences,
    identify_node,
    majority,
)
from spherefed.deployment.site import properties
from spherefed.engines.flower import DeliveryFailure, Messenger
from spherefed.errors import FederationError
from spherefed.experiment import Experiment
from spherefed.messages import Failure
from spherefed.server.validation import min_replies, printable
from spherefed.tensors import Tensors, num_bytes

POLL_INTERVAL = 0.5
HANDSHAKE_TIMEOUT = 120.0
"""Seconds for a site to answer the handshake: it first loads its data, and may decode images for the first time."""
RETRY_SECONDS = 30.0
"""Seconds after which a node that did not answer the handshake, or failed in it, is asked again."""


class Membership:
    """The members of a run, and the connected nodes that do not take part."""

    def __init__(
        self, messenger: Messenger, experiment: Experiment, keys: Mapping[int, int], names: Sequence[str] = ()
    ) -> None:
        self.messenger = messenger
        self.members: dict[int, Member] = {}
        """By client."""
        self._experiment = experiment
        self._keys = keys
        """The client whose key each node has; empty without authentication."""
        self._names = names
        """The names of the sites by client number, as far as they are known."""
        self._expected: SiteProperties | None = None
        self._derived: Tensors = {}
        self._rejected: dict[int, RejectedNode] = {}
        """By node, while it stays connected."""
        self._duplicates: dict[int, Member] = {}
        """Nodes whose client already has a connected node: Flower takes a minute to notice a lost connection."""
        self._online: set[int] = set()
        """The nodes that were connected at the last check."""
        self._sent_bytes: dict[int, int] = {}

    def wait_for_sites(self, wait: float) -> None:
        """Wait until all sites are connected and do the handshake; a FederationError names the missing clients."""
        num_clients, end = self._experiment.partition.clients, time.monotonic() + wait
        while len(self.messenger.nodes()) < num_clients and time.monotonic() < end:
            time.sleep(POLL_INTERVAL)
        self._online = self.messenger.nodes()
        found = self._handshake(self._online, self._timeout(max(HANDSHAKE_TIMEOUT, wait)))
        quorum = self._experiment.quorum
        if quorum:  # a node that fails the handshake then counts as missing and does not stop the run
            self._rejected = {node: entry for node, entry in found.items() if isinstance(entry, RejectedNode)}
            found = {node: entry for node, entry in found.items() if isinstance(entry, Member)}
        self.members = assign_clients(found)
        self._check_enough(f"were connected after {wait:g} s")

    def check_agreement(self, assembly: Assembly) -> None:
        """Compare all members with the server; send the derived state to members whose own differs.

        A member that still differs is left out with a quorum, and otherwise a FederationError.
        """
        self._derived, self._expected = assembly.local_model.derived_state(), properties(assembly)
        if assembly.dataset.remote:
            normalization = majority(self.members, lambda each: each.normalization)
            self._expected = replace(self._expected, normalization=normalization)
        if not self._experiment.quorum:
            check_properties(self.members, self._expected)
        for client, member in list(self.members.items()):
            if (cause := self._fault(member)) is None:
                continue
            if not self._experiment.quorum:
                raise FederationError(cause)
            self._rejected[member.node] = RejectedNode(cause, client)
            del self.members[client]
        self._check_enough("agree")

    def _check_enough(self, how: str) -> None:
        """Raise a FederationError that names the missing clients if too few sites are members."""
        quorum, num_clients = self._experiment.quorum, self._experiment.partition.clients
        if len(self.members) < (min_replies(quorum, num_clients) if quorum else num_clients):
            missing = ", ".join(str(client) for client in range(num_clients) if client not in self.members)
            causes = "".join(f"; {entry.cause}" for entry in self._rejected.values())
            raise FederationError(
                f"{len(self.members)} of {num_clients} sites {how}, without client {missing}"
                f"{causes}; start the missing sites, or set quorum to the fraction that is enough"
            )

    def locate_clients(self) -> dict[int, int | str]:
        """The node of each client that takes part now, or the reason why it has none."""
        online, before = self.messenger.nodes(), self._online
        self._online = online
        now = time.monotonic()
        self._rejected = {
            node: entry for node, entry in self._rejected.items() if node in online and entry.retry_at > now
        }
        self._duplicates = {node: entry for node, entry in self._duplicates.items() if node in online}
        known = {member.node for member in self.members.values() if member.node in before}
        new_nodes = online - known - self._rejected.keys() - self._duplicates.keys()
        found = self._handshake(new_nodes, self._timeout(HANDSHAKE_TIMEOUT))
        for node, entry in [*found.items(), *self._duplicates.items()]:
            self._accept_or_reject(node, entry, online)
        nodes: dict[int, int | str] = {
            entry.client: entry.cause for entry in self._rejected.values() if entry.client >= 0
        }
        for client, member in self.members.items():
            if member.node in online and member.node not in self._rejected:
                nodes[client] = member.node
            else:
                nodes.setdefault(client, f"the node of {member.description} is not connected")
        return nodes

    def describe(self) -> list[dict[str, Any]]:
        """All sites as plain data, for the run directory."""
        found = []
        for client in range(self._experiment.partition.clients):
            member = self.members.get(client)
            name = self._names[client] if client < len(self._names) else f"client {client}"
            found.append(
                {
                    "client": client,
                    "site": name if member is None else member.site,
                    "node": "" if member is None else str(member.node),
                    "derived_bytes": self._sent_bytes.get(client, 0),
                    "left_out_of_statistics": 0 if member is None else member.left_out,
                }
            )
        return found

    def _accept_or_reject(self, node: int, entry: Member | RejectedNode, online: set[int]) -> None:
        """Make the node a member, unless its client already has a node or its properties differ."""
        if isinstance(entry, RejectedNode):
            self._rejected[node] = entry
            return
        current = self.members.get(entry.client)
        if current is not None and current.node != node and current.node in online:
            self._duplicates[node] = entry
            return
        self._duplicates.pop(node, None)
        if (cause := self._fault(entry)) is not None:
            self._rejected[node] = RejectedNode(cause, entry.client)
        else:
            self.members[entry.client] = entry

    def _fault(self, member: Member) -> str | None:
        """In which properties a site differs, also after it was sent the derived state; None if it agrees."""
        assert self._expected is not None
        lines = differences(member.properties, self._expected)
        return f"{member.description}: {'; '.join(lines)}" if lines else self._send_derived_if_different(member)

    def _send_derived_if_different(self, member: Member) -> str | None:
        """Send the server's derived state to a site whose own differs; return why it failed, or None."""
        assert self._expected is not None
        if member.properties.derived_state == self._expected.derived_state:
            return None
        timeout = self._timeout(HANDSHAKE_TIMEOUT)
        (_, reply) = next(self.messenger.ask([member.node], LoadDerived(self._derived), timeout))
        if not isinstance(reply, DerivedLoaded) or reply.digest != self._expected.derived_state:
            cause = printable(getattr(reply, "cause", reply))
            return f"{member.description} did not load the derived state: {cause}"
        self._sent_bytes[member.client] = num_bytes(self._derived)
        return None

    def _timeout(self, longest: float) -> float:
        """Seconds for a handshake. With a quorum, a silent node delays the others no longer than in a round."""
        experiment = self._experiment
        return min(longest, experiment.deadline) if experiment.quorum and experiment.deadline else longest

    def _handshake(self, nodes: set[int], timeout: float) -> dict[int, Member | RejectedNode]:
        if not nodes:
            return {}
        replies = self.messenger.ask(sorted(nodes), Handshake(), timeout)
        found = {node: (reply, self._check_identity(node, identify_node(node, reply))) for node, reply in replies}
        again = time.monotonic() + RETRY_SECONDS
        return {
            node: replace(entry, retry_at=again)
            if isinstance(entry, RejectedNode) and isinstance(reply, DeliveryFailure | Failure)
            else entry
            for node, (reply, entry) in found.items()
        }

    def _check_identity(self, node: int, entry: Member | RejectedNode) -> Member | RejectedNode:
        """The node's key decides which client it is; a node that names another client is rejected."""
        clients, owner = range(self._experiment.partition.clients), self._keys.get(node)
        if isinstance(entry, RejectedNode):
            # Without keys, a site says itself whose failure it is.
            client = owner if self._keys else entry.client
            if client is None or client not in clients:
                return replace(entry, cause=f"node {node}: {entry.cause}", client=-1)
            name = self._names[client] if client < len(self._names) else entry.site
            site = f"site {name!r} (client {client})" if name else f"client {client}"
            return replace(entry, cause=f"{site}: {entry.cause}", client=client)
        if entry.client not in clients:
            return RejectedNode(f"{entry.description}: clients are 0 to {clients[-1]}", entry.client)
        if self._keys and owner != entry.client:
            key = "a key of no site of this deployment" if owner is None else f"the key of client {owner}"
            return RejectedNode(f"{entry.description} has {key}", entry.client)
        # The deployment names its sites; a site's own name counts only where it does not.
        return replace(entry, site=self._names[entry.client]) if entry.client < len(self._names) else entry
