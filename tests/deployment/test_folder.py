"""The folder of a deployment: keys, site files, and what is refused."""

import stat
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from spherefed.deployment.folder import read_server, read_site
from spherefed.deployment.server import RunRequest
from spherefed.errors import ConfigError


def test_private_keys_are_for_their_owner_only(folder: Path) -> None:
    keys = [*folder.rglob("*.key")]
    assert {key.name for key in keys} == {"ca.key", "server.key", "site.key"}
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert not [key for key in (folder / "server").rglob("*.key") if key.name != "server.key"]


def test_everything_in_a_deployment_folder_is_for_its_owner_only(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_every_site_has_a_key_of_its_own_that_the_server_knows(folder: Path) -> None:
    for name in ("north", "south"):
        private = load_ssh_private_key((folder / "sites" / name / "site.key").read_bytes(), None)
        known = load_ssh_public_key((folder / "server" / "keys" / f"{name}.pub").read_bytes())
        assert private.public_key() == known
    keys = {(folder / "server" / "keys" / f"{name}.pub").read_bytes().split()[1] for name in ("north", "south")}
    assert len(keys) == 2


def test_what_is_written_is_read_back(folder: Path) -> None:
    server, site = read_server(folder / "server"), read_site(folder / "sites" / "south")
    assert (server.address, server.port, server.sites, server.insecure) == (
        "fl.example.org",
        9443,
        ("north", "south"),
        False,
    )
    assert (site.client, site.server, site.client_state) == (
        1,
        "fl.example.org:9443",
        str(folder / "sites/south/client_state"),
    )
    assert "sites/south/" in (folder / "README.md").read_text()
    assert "@" not in (folder / "README.md").read_text()


def test_the_flower_app_declares_every_field_of_a_run_request(folder: Path) -> None:
    """Flower rejects a run with a value that its app does not declare."""
    app = tomllib.loads((folder / "server" / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"].keys() == {field.name for field in fields(RunRequest)}


def test_paths_of_a_site_are_relative_to_its_folder(folder: Path) -> None:
    file = folder / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace('data = ""', 'data = "folder:images"'))
    assert read_site(folder / "sites" / "north").data == f"folder:{folder / 'sites/north/images'}"


@pytest.mark.parametrize(
    ("content", "message"),
    [('clinet = 1\nserver = "x:1"\nsite = "a"', "did you mean 'client'"), ("client = ", "cannot be parsed")],
)
def test_a_damaged_site_file_is_named(content: str, message: str, folder: Path) -> None:
    (folder / "sites" / "north" / "site.toml").write_text(content)
    with pytest.raises(ConfigError, match=f"site.toml.*{message}"):
        read_site(folder / "sites" / "north")


@pytest.mark.parametrize("port", [9443, 65536, -1])
def test_the_control_port_is_a_valid_port_other_than_the_open_one(port: int, folder: Path) -> None:
    file = folder / "server" / "server.toml"
    file.write_text(file.read_text().replace("control_port = 0", f"control_port = {port}"))
    with pytest.raises(ConfigError, match=f"a port other than 9443, got {port}"):
        read_server(folder / "server")


def test_insecure_is_refused_where_a_site_file_was_edited(folder: Path) -> None:
    file = folder / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace("insecure = false", "insecure = true"))
    with pytest.raises(ConfigError, match="only loopback"):
        read_site(folder / "sites" / "north")
