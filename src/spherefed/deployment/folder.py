"""The folder of a deployment: certificates, keys, configuration and a start script for each role.

DIR/README.md          for the operator
DIR/ca/                the authority's key, with which anybody could pretend to be the server: keep it elsewhere
DIR/server/            for the server's machine
DIR/sites/NAME/        for that site's machine, and for nobody else
"""

import ipaddress
import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from spherefed.errors import ConfigError
from spherefed.schema import from_plain

SERVER_TOML, SITE_TOML, CONNECTION = "server.toml", "site.toml", "federation"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFolder:
    """server.toml: where the server listens and who may join."""

    address: str
    """The name or address under which sites reach the server."""
    port: int
    sites: tuple[str, ...]
    """In the order of client numbers."""
    listen: str = "0.0.0.0"
    """The interface to listen on."""
    insecure: bool = False
    """No TLS and no authentication: for loopback only."""

    @property
    def near(self) -> str:
        """Where the server's own machine reaches it."""
        return "127.0.0.1" if self.listen == "0.0.0.0" else self.listen


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFolder:
    """site.toml: how a site reaches the server, and what it has; paths are relative to the file."""

    server: str
    client: int
    site: str
    data: str = ""
    data_root: str = ""
    memory: str = "memory"
    device: str = "cpu"
    min_samples: int = 2
    insecure: bool = False


def read_server(folder: Path) -> ServerFolder:
    found: ServerFolder = _read(ServerFolder, folder / SERVER_TOML)
    _check_loopback(found.address, insecure=found.insecure)
    _check_loopback(found.listen, insecure=found.insecure)
    return found


def read_site(folder: Path) -> SiteFolder:
    """With its paths made absolute."""
    found: SiteFolder = _read(SiteFolder, folder / SITE_TOML)
    _check_loopback(found.server.rpartition(":")[0], insecure=found.insecure)
    kind, _, path = found.data.partition(":")
    changes = {
        "data": f"{kind}:{(folder / Path(path).expanduser()).resolve()}" if path else found.data,
        "data_root": str((folder / Path(found.data_root).expanduser()).resolve()) if found.data_root else "",
        "memory": str((folder / Path(found.memory).expanduser()).resolve()),
    }
    return SiteFolder(**{f.name: getattr(found, f.name) for f in fields(found)} | changes)


def init(path: Path, sites: list[str], *, address: str, port: int, insecure: bool = False) -> None:
    """Write a ready deployment folder; an existing one is never touched."""
    for name in sites:
        if not NAME.fullmatch(name):
            raise ConfigError(f"a site's name is made of small letters, digits and '-', got {name!r}")
    if len(set(sites)) < len(sites) or not sites:
        raise ConfigError(f"every site needs a name of its own, got {', '.join(sites) or 'none'}")
    if not 1 <= port <= 65535:
        raise ConfigError(f"the port must be between 1 and 65535, got {port}")
    _check_loopback(address, insecure=insecure)
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; name another folder, or remove it first")
    server = path / "server"
    (server / "keys").mkdir(parents=True)
    names = [path / "sites" / name for name in sites]
    for folder in names:
        folder.mkdir(parents=True)
    if not insecure:
        _write_credentials(path, address, sites)
    listen = address if _is_loopback(address) else "0.0.0.0"
    folder_of_server = ServerFolder(address=address, port=port, sites=tuple(sites), listen=listen, insecure=insecure)
    _write_toml(server / SERVER_TOML, folder_of_server)
    app = server / "app"
    app.mkdir()
    shutil.copyfile(str(files("spherefed.deployment") / "flowerapp" / "pyproject.toml"), app / "pyproject.toml")
    _write_script(server / "start.sh", "deploy serve")
    for number, folder in enumerate(names):
        site = SiteFolder(server=f"{address}:{port}", client=number, site=sites[number], insecure=insecure)
        _write_toml(folder / SITE_TOML, site)
        _write_script(folder / "start.sh", "deploy join")
    (path / "README.md").write_text(_readme(folder_of_server), encoding="utf-8")


def _write_credentials(path: Path, address: str, sites: list[str]) -> None:
    from spherefed.deployment.certificates import Authority, write_certificate, write_private, write_site_key

    authority = Authority.new("spherefed")
    (path / "ca").mkdir()
    write_private(path / "ca" / "ca.key", authority.key)
    write_certificate(path / "ca" / "ca.crt", authority.certificate)
    key, certificate = authority.certify(list(dict.fromkeys([address, "127.0.0.1", "localhost"])))
    write_private(path / "server" / "server.key", key)
    write_certificate(path / "server" / "server.crt", certificate)
    write_certificate(path / "server" / "ca.crt", authority.certificate)
    for name in sites:
        line = write_site_key(path / "sites" / name / "site.key", name)
        (path / "server" / "keys" / f"{name}.pub").write_bytes(line)
        write_certificate(path / "sites" / name / "ca.crt", authority.certificate)


def write_connection(server: Path, folder: ServerFolder) -> None:
    """Flower's own configuration, written anew at each start since it has full paths: how `flwr` reaches the server."""
    home = server / "flower"
    home.mkdir(exist_ok=True)
    lines = [
        "[superlink]",
        f'default = "{CONNECTION}"',
        f"[superlink.{CONNECTION}]",
        f'address = "{folder.near}:{folder.port}"',
        "insecure = true"
        if folder.insecure
        else f"root-certificates = {toml_value(str((server / 'ca.crt').resolve()))}",
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_script(path: Path, verb: str) -> None:
    """The program by its full path, so that the script needs no activated environment on this machine."""
    program = Path(sys.executable).with_name("spherefed")
    found = shlex.quote(str(program)) if program.exists() else "spherefed"
    path.write_text(
        f"""#!/bin/sh
# Starts this role and stays in the foreground; Ctrl-C or SIGTERM ends it.
# The program is the one of the environment that made this file, else that of $SPHEREFED, else that of the path.
cd "$(dirname "$0")" || exit 1
program={found}
[ -x "$program" ] || program="${{SPHEREFED:-spherefed}}"
exec "$program" {verb} "$PWD"
""",
        encoding="utf-8",
    )
    path.chmod(0o755)


def _readme(server: ServerFolder) -> str:
    template = (files("spherefed.deployment") / "operator.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {number} | `{name}` | `sites/{name}/` |" for number, name in enumerate(server.sites))
    transport = (
        "**Without TLS and without authentication**: for trying things out on one machine, and for nothing else. "
        "What is said below about keys and certificates does not apply."
        if server.insecure
        else "Traffic is encrypted (TLS), and only the sites below may join (a key each)."
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
            f"cannot read {path}: {error.strerror}; a folder that `spherefed deploy init` made is needed"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from error
    try:
        return from_plain(wanted, plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _write_toml(path: Path, value: Any) -> None:
    lines = [f"{f.name} = {toml_value(getattr(value, f.name))}" for f in fields(value)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def toml_value(value: Any) -> str:
    """A text, number, truth value or list of texts; JSON's forms of these are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
