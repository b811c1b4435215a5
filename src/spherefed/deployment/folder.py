"""The deployment folder: certificates, keys, configuration and a start script for each role.

DIR/README.md          instructions for the operator
DIR/ca/                the key of the certificate authority. Its holder can impersonate the server: store it offline
DIR/server/            copy it to the server's machine
DIR/sites/NAME/        copy it to that site's machine only
"""

import ipaddress
import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from spherefed.data.sources import is_own_source
from spherefed.deployment.limits import SiteLimits
from spherefed.errors import ConfigError
from spherefed.files import private_files
from spherefed.schema import from_plain

SERVER_TOML, SITE_TOML, CONNECTION = "server.toml", "site.toml", "federation"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFolder:
    """server.toml: the address at which the server listens, and the sites that may join."""

    address: str
    """The host name or IP address at which sites reach the server."""
    port: int
    sites: tuple[str, ...]
    """Names of the sites; the position is the client number."""
    listen: str = "0.0.0.0"
    """The IP address of the interface to listen on."""
    insecure: bool = False
    """No TLS and no authentication; allowed on loopback only."""
    control_port: int = 0
    """The loopback port on which the SuperLink accepts commands; 0: each start chooses a free port."""

    @property
    def local_address(self) -> str:
        """The address at which the server's own machine reaches it."""
        return "127.0.0.1" if self.listen == "0.0.0.0" else self.listen


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFolder:
    """site.toml: the server's address and the site's data and limits. Paths are relative to the file."""

    server: str
    client: int
    site: str
    data: str = ""
    data_root: str = ""
    held_out: float = 0.2
    """Fraction of its own examples that the site keeps from training, for evaluation."""
    client_state: str = "client_state"
    record: str = "record.json"
    """Where the site records its hold-out and what it has answered."""
    device: str = "cpu"
    allow: tuple[str, ...] = ()
    """Components outside the package that an experiment of the server may use here, `package.module:Name`."""
    insecure: bool = False
    limits: SiteLimits = field(default_factory=SiteLimits)
    """What the server may ask of this site, as the table `[limits]`."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out must be in [0, 1), got {self.held_out}")


def read_server(folder: Path) -> ServerFolder:
    found: ServerFolder = _read(ServerFolder, folder / SERVER_TOML)
    _check_loopback(found.address, insecure=found.insecure)
    _check_loopback(found.listen, insecure=found.insecure)
    if not 0 <= found.control_port <= 65535 or found.control_port == found.port:
        raise ConfigError(f"control_port must be 0 or a port other than {found.port}, got {found.control_port}")
    return found


def read_site(folder: Path) -> SiteFolder:
    """Read site.toml and make its paths absolute."""
    found: SiteFolder = _read(SiteFolder, folder / SITE_TOML)
    _check_loopback(found.server.rpartition(":")[0], insecure=found.insecure)
    kind, _, path = found.data.partition(":")
    changes = {
        "data": f"{kind}:{(folder / Path(path).expanduser()).resolve()}"
        if path and not is_own_source(found.data)
        else found.data,
        "data_root": str((folder / Path(found.data_root).expanduser()).resolve()) if found.data_root else "",
        "client_state": str((folder / Path(found.client_state).expanduser()).resolve()),
        "record": str((folder / Path(found.record).expanduser()).resolve()),
    }
    return SiteFolder(**{f.name: getattr(found, f.name) for f in fields(found)} | changes)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"a site name must consist of lowercase letters, digits and '-', got {name!r}")


def init(
    path: Path, sites: list[str], *, address: str, port: int, insecure: bool = False, keys_at_sites: bool = False
) -> None:
    """Write a complete deployment folder; a folder that is not empty is never changed.

    With `keys_at_sites` no site has a key yet: each site makes its own, and `keys.add_site` adds it to the server.
    """
    for name in sites:
        check_name(name)
    if len(set(sites)) < len(sites) or not sites:
        raise ConfigError(f"site names must be unique and at least one is needed, got {', '.join(sites) or 'none'}")
    if not 1 <= port <= 65535:
        raise ConfigError(f"the port must be between 1 and 65535, got {port}")
    _check_loopback(address, insecure=insecure)
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; name another folder, or remove it first")
    with private_files():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        _write_folder(path, sites, address=address, port=port, insecure=insecure, keys_at_sites=keys_at_sites)


def _write_folder(
    path: Path, sites: list[str], *, address: str, port: int, insecure: bool, keys_at_sites: bool
) -> None:
    server = path / "server"
    (server / "keys").mkdir(parents=True)
    if not insecure:
        _write_credentials(path, address)
    listen = address if _is_loopback(address) else "0.0.0.0"
    folder_of_server = ServerFolder(address=address, port=port, sites=tuple(sites), listen=listen, insecure=insecure)
    write_server(server, folder_of_server)
    write_app(server)
    _write_script(server / "start.sh", "deploy serve")
    for number, name in enumerate(sites):
        site = SiteFolder(server=f"{address}:{port}", client=number, site=name, insecure=insecure)
        write_site(path / "sites" / name, site, authority=None if insecure else server / "ca.crt")
        if not insecure and not keys_at_sites:
            _write_key(path, name)
    (path / "README.md").write_text(_readme(folder_of_server), encoding="utf-8")


def write_server(folder: Path, server: ServerFolder) -> None:
    _write_toml(folder / SERVER_TOML, server)


def write_site(folder: Path, site: SiteFolder, *, authority: Path | None) -> None:
    """Write a site's folder without a key; `authority` is the CA certificate that verifies the server."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _write_toml(folder / SITE_TOML, site)
    _write_script(folder / "start.sh", "deploy join")
    if authority is not None:
        shutil.copyfile(authority, folder / "ca.crt")


def _write_credentials(path: Path, address: str) -> None:
    from spherefed.deployment.certificates import Authority, write_certificate, write_private

    authority = Authority.new("spherefed")
    (path / "ca").mkdir()
    write_private(path / "ca" / "ca.key", authority.key)
    write_certificate(path / "ca" / "ca.crt", authority.certificate)
    key, certificate = authority.certify(list(dict.fromkeys([address, "127.0.0.1", "localhost"])))
    write_private(path / "server" / "server.key", key)
    write_certificate(path / "server" / "server.crt", certificate)
    write_certificate(path / "server" / "ca.crt", authority.certificate)


def _write_key(path: Path, name: str) -> None:
    """Make a site's key here; for trials, because the private key then exists outside the site."""
    from spherefed.deployment.certificates import write_site_key

    line = write_site_key(path / "sites" / name / "site.key", name)
    (path / "server" / "keys" / f"{name}.pub").write_bytes(line)


def write_app(server: Path) -> None:
    """Write the description of the Flower app that `flwr run` submits. Each start rewrites it: releases differ."""
    app = server / "app"
    app.mkdir(exist_ok=True)
    shutil.copyfile(str(files("spherefed.deployment") / "flowerapp" / "pyproject.toml"), app / "pyproject.toml")


def write_connection(server: Path, folder: ServerFolder, address: tuple[str, int]) -> None:
    """Write Flower's configuration for `flwr`, with this address. Each start rewrites it: it has full paths."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    home = server / "flower"
    home.mkdir(exist_ok=True)
    lines = [
        "[superlink]",
        f'default = "{CONNECTION}"',
        f"[superlink.{CONNECTION}]",
        f'address = "{host}:{address[1]}"',
        "insecure = true"
        if folder.insecure
        else f"root-certificates = {toml_value(str((server / 'ca.crt').resolve()))}",
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_connection(server: Path) -> tuple[str, int] | None:
    """The address at which `flwr` reaches the SuperLink, as written at its last start; None if it was never started."""
    try:
        plain = tomllib.loads((server / "flower" / "config.toml").read_text(encoding="utf-8"))
        host, _, port = str(plain["superlink"][CONNECTION]["address"]).rpartition(":")
        return host.strip("[]"), int(port)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_script(path: Path, verb: str) -> None:
    """Use the full path of the program, so that the script needs no activated environment on this machine."""
    program = Path(sys.executable).with_name("spherefed")
    found = shlex.quote(str(program)) if program.exists() else "spherefed"
    path.write_text(
        f"""#!/bin/sh
# Starts this role in the foreground; Ctrl-C or SIGTERM ends it.
# Program: the one of the environment that made this file, else $SPHEREFED, else `spherefed` on the PATH.
cd "$(dirname "$0")" || exit 1
program={found}
[ -x "$program" ] || program="${{SPHEREFED:-spherefed}}"
exec "$program" {verb} "$PWD"
""",
        encoding="utf-8",
    )
    path.chmod(0o700)


def _readme(server: ServerFolder) -> str:
    template = (files("spherefed.deployment") / "operator.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {number} | `{name}` | `sites/{name}/` |" for number, name in enumerate(server.sites))
    transport = (
        "**There is no TLS and no authentication**: use this only for trials on one machine. "
        "The statements below about keys and certificates do not apply."
        if server.insecure
        else "Traffic is encrypted (TLS). Only the sites below may join; each has its own key."
    )
    for name, value in {
        "ADDRESS": f"{server.address}:{server.port}",
        "SITES": rows,
        "TRANSPORT": transport,
    }.items():
        template = template.replace(f"@{name}@", value)
    return template


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _check_loopback(address: str, *, insecure: bool) -> None:
    if insecure and not _is_loopback(address):
        raise ConfigError(f"without TLS and authentication only loopback is allowed, got {address!r}; drop --insecure")


def _read(wanted: type, path: Path) -> Any:
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; give a folder that `spherefed deploy init` wrote"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from error
    try:
        return from_plain(wanted, plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _write_toml(path: Path, value: Any) -> None:
    lines, tables = [], []
    for name, entry in ((f.name, getattr(value, f.name)) for f in fields(value)):
        if is_dataclass(entry):
            tables += ["", f"[{name}]", *(f"{f.name} = {toml_value(getattr(entry, f.name))}" for f in fields(entry))]
        else:
            lines.append(f"{name} = {toml_value(entry)}")
    path.write_text("\n".join([*lines, *tables]) + "\n", encoding="utf-8")


def toml_value(value: Any) -> str:
    """A string, number, boolean or list of strings; for these JSON and TOML have the same syntax."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
