"""The keys that authenticate sites: made at the site, added and revoked at the server.

SITE/site.key             private key, stays at the site
SITE/site.pub             public key, to send to the server's operator
SERVER/keys/NAME.pub      public keys of the sites that may join
SERVER/keys/revoked/      revoked public keys, which cannot be added again
SERVER/nodes.json         Flower's node id of each site
"""

import hashlib
import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spherefed.deployment.certificates import public_key_pem, write_site_key
from spherefed.deployment.folder import (
    CONNECTION,
    ServerFolder,
    SiteFolder,
    check_name,
    read_server,
    read_site,
    write_server,
    write_site,
)
from spherefed.deployment.programs import flwr, flwr_json, healthy
from spherefed.errors import ConfigError, FederationError
from spherefed.files import write_bytes

PRIVATE_KEY, PUBLIC_KEY, KEYS, REVOKED, NODES = "site.key", "site.pub", "keys", "revoked", "nodes.json"
UNREGISTERED = frozenset({"unregistered", "deleted"})
"""Flower's status of nodes that can no longer connect."""
RELOAD_SECONDS = 5.0
"""Time after which the front reads the keys again even if the folder's modification time is the same."""


def new_site_key(folder: Path) -> str:
    """Make a site's key in its folder; return the public key as one line."""
    name = read_site(folder).site
    if (folder / PRIVATE_KEY).exists():
        raise ConfigError(
            f"{folder / PRIVATE_KEY} exists; to replace the key, have the operator revoke it, and delete this file"
        )
    line = write_site_key(folder / PRIVATE_KEY, name)
    (folder / PUBLIC_KEY).write_bytes(line)
    return line.decode().strip()


def fingerprint(line: str) -> str:
    """The SHA-256 fingerprint of a public key, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return "SHA256:" + b64encode(digest).decode().rstrip("=")


def add_site(folder: Path, name: str, *, public_key: Path | None = None, site_folder: Path | None = None) -> list[str]:
    """Add a site's public key, or write the folder of a new site, or both; return one line for each.

    A site with a new name gets the next client number.
    """
    check_name(name)
    server, lines = read_server(folder), []
    if server.insecure:
        raise ConfigError(f"{folder} belongs to an insecure deployment, which has no keys; make one without --insecure")
    if public_key is None and site_folder is None:
        raise ConfigError(
            "give --public-key FILE to add a site's key, or --site-folder DIR to write a new site's folder"
        )
    line = _check_key(folder, name, public_key) if public_key else ""
    if site_folder is not None and site_folder.exists() and any(site_folder.iterdir()):
        raise ConfigError(f"{site_folder} is not empty; name another folder")
    if name not in server.sites:
        server = replace(server, sites=(*server.sites, name))
        write_server(folder, server)
    client = server.sites.index(name)
    if site_folder is not None:
        site = SiteFolder(server=f"{server.address}:{server.port}", client=client, site=name)
        write_site(site_folder, site, authority=folder / "ca.crt")
        lines.append(f"folder of site {name} (client {client}): {site_folder}")
    if line:
        write_bytes(folder / KEYS / f"{name}.pub", f"{line}\n".encode())
        lines.append(f"site {name} (client {client}) may join with key {fingerprint(line)}")
        if healthy(folder, server):
            register_sites(folder, server)
    return lines


def _check_key(folder: Path, name: str, public_key: Path) -> str:
    """The public key as one line; it must be new, valid and different from the keys of other sites."""
    pem = public_key_pem(public_key)
    if (folder / KEYS / f"{name}.pub").exists():
        raise ConfigError(f"site {name} already has a key; revoke it first: `spherefed deploy revoke {folder} {name}`")
    if owners := [other.stem for other in (folder / KEYS).glob("*.pub") if public_key_pem(other) == pem]:
        raise ConfigError(f"this is the key of site {owners[0]}; every site needs its own key")
    if any(public_key_pem(other) == pem for other in (folder / KEYS / REVOKED).glob("*.pub")):
        raise ConfigError("this key was revoked; make a new key at the site with `spherefed deploy join --new-key`")
    kind, key = public_key.read_text(encoding="utf-8").split()[:2]
    return f"{kind} {key} {name}"


def revoke_site(folder: Path, name: str) -> str:
    """Revoke a site's key: the front rejects it at once, and the SuperLink unregisters it now or at its next start."""
    server, key = read_server(folder), folder / KEYS / f"{name}.pub"
    if not key.exists():
        raise ConfigError(f"site {name!r} has no key; sites with a key: {', '.join(_sites_with_key(folder)) or 'none'}")
    shown = fingerprint(key.read_text(encoding="utf-8"))
    (folder / KEYS / REVOKED).mkdir(exist_ok=True)
    number = sum(1 for _ in (folder / KEYS / REVOKED).iterdir())
    key.rename(folder / KEYS / REVOKED / f"{name}-{number}.pub")
    if healthy(folder, server):
        register_sites(folder, server)
    return f"site {name} can no longer join; its key {shown} is revoked"


def site_keys(folder: Path) -> Callable[[], frozenset[bytes]]:
    """A function that returns the keys (PEM) that may join; it reads them again when the folder has changed."""
    found: frozenset[bytes] = frozenset()
    modified, read_at = -1, 0.0

    def current() -> frozenset[bytes]:
        nonlocal found, modified, read_at
        now, latest = time.monotonic(), (folder / KEYS).stat().st_mtime_ns
        if latest != modified or now - read_at > RELOAD_SECONDS:
            found, modified, read_at = _read_keys(folder / KEYS), latest, now
        return found

    return current


def _read_keys(keys: Path) -> frozenset[bytes]:
    """The valid keys; files that are invalid, or that are revoked while they are read, are left out."""
    found = set()
    for path in keys.glob("*.pub"):
        with suppress(ConfigError):
            found.add(public_key_pem(path))
    return frozenset(found)


def register_sites(folder: Path, server: ServerFolder) -> None:
    """Register the folder's keys at a running SuperLink, unregister removed ones, and store each site's node id."""
    nodes = read_nodes(folder)
    listed = {
        node["node-id"] for node in flwr_json(folder, "supernode list", "nodes") if node["status"] not in UNREGISTERED
    }
    allowed = _sites_with_key(folder)
    for name in [name for name, node in nodes.items() if name not in allowed or node not in listed]:
        if nodes[name] in listed:
            flwr(folder, "supernode", "unregister", nodes[name], CONNECTION)
        del nodes[name]
    write_bytes(folder / NODES, json.dumps(nodes, indent=2).encode())
    for name in [name for name in server.sites if name in allowed and name not in nodes]:
        key = str(folder / KEYS / f"{name}.pub")
        said = flwr(folder, "supernode", "register", key, CONNECTION, "--name", name, "--format", "json")
        found = re.search(r'"node-id": "?(\d+)', said)
        if found:
            nodes[name] = found[1]
        elif "already" not in said:
            raise FederationError(f"Flower did not register the key of site {name}: {' '.join(said.split())}")
    write_bytes(folder / NODES, json.dumps(nodes, indent=2).encode())


def read_nodes(folder: Path) -> dict[str, str]:
    """The node id of each site."""
    try:
        found: dict[str, str] = json.loads((folder / NODES).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not written yet, or incomplete
        return {}
    return found


def _sites_with_key(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / KEYS).glob("*.pub"))
