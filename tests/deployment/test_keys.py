"""Keys of sites: made at the site, added and revoked at the server."""

import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from spherefed.deployment import keys
from spherefed.deployment.certificates import public_key_pem
from spherefed.deployment.folder import init, read_server, read_site
from spherefed.errors import ConfigError
from support.command_line import spherefed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "d", ["north", "south"], address="fl.example.org", port=9443, keys_at_sites=True)
    return tmp_path / "d"


@pytest.fixture
def server(folder: Path) -> Path:
    """A server folder to which the key of north was added."""
    keys.new_site_key(folder / "sites" / "north")
    keys.add_site(folder / "server", "north", public_key=folder / "sites" / "north" / "site.pub")
    return folder / "server"


def test_a_deployment_can_be_made_without_any_key_of_a_site(folder: Path) -> None:
    assert {path.name for path in folder.rglob("*.key")} == {"ca.key", "server.key"}
    assert list((folder / "server" / "keys").iterdir()) == []
    assert (folder / "sites" / "north" / "ca.crt").read_bytes() == (folder / "ca" / "ca.crt").read_bytes()


def test_a_site_makes_its_key_and_prints_the_public_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = folder / "sites" / "north"
    assert spherefed(monkeypatch, "deploy", "join", site, "--new-key") == 0
    said = capsys.readouterr()
    private = load_ssh_private_key((site / "site.key").read_bytes(), None)
    assert load_ssh_public_key(said.out.encode()) == private.public_key()
    assert (site / "site.pub").read_text() == said.out
    assert stat.S_IMODE((site / "site.key").stat().st_mode) == 0o600
    shown = subprocess.run(["ssh-keygen", "-lf", site / "site.pub"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[1] in said.err
    before = (site / "site.key").read_bytes()
    assert spherefed(monkeypatch, "deploy", "join", site, "--new-key") == 2
    assert (site / "site.key").read_bytes() == before


def test_the_error_of_a_site_without_a_key_says_how_to_make_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spherefed(monkeypatch, "deploy", "join", folder / "sites" / "north") == 2
    assert "--new-key" in capsys.readouterr().err


def test_an_added_key_is_known_at_once_and_a_revoked_one_is_not(folder: Path) -> None:
    current = keys.site_keys(folder / "server")
    assert current() == frozenset()
    public = {}
    for name in ("north", "south"):
        keys.new_site_key(folder / "sites" / name)
        keys.add_site(folder / "server", name, public_key=folder / "sites" / name / "site.pub")
        public[name] = public_key_pem(folder / "sites" / name / "site.pub")
    assert current() == frozenset(public.values())
    keys.revoke_site(folder / "server", "north")
    assert current() == {public["south"]}
    assert read_server(folder / "server").sites == ("north", "south")  # client numbers stay


def test_a_new_site_becomes_the_next_client(folder: Path, tmp_path: Path) -> None:
    keys.add_site(folder / "server", "east", site_folder=tmp_path / "east")
    assert read_server(folder / "server").sites == ("north", "south", "east")
    site = read_site(tmp_path / "east")
    assert (site.client, site.site, site.server) == (2, "east", "fl.example.org:9443")
    keys.new_site_key(tmp_path / "east")
    keys.add_site(folder / "server", "east", public_key=tmp_path / "east" / "site.pub")
    assert read_server(folder / "server").sites == ("north", "south", "east")


def test_unsuitable_keys_are_rejected(server: Path, tmp_path: Path) -> None:
    north = server.parent / "sites" / "north" / "site.pub"
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    (tmp_path / "noise.pub").write_text("nothing")
    for name, path, message in [
        ("south", north, "the key of site north"),
        ("north", north, "already has a key"),
        ("south", other.with_suffix(".pub"), "NIST curve"),
        ("south", tmp_path / "noise.pub", "no public key"),
        ("south", server.parent / "sites" / "north" / "site.key", "no public key"),
        ("../south", north, "lowercase letters"),
    ]:
        with pytest.raises(ConfigError, match=message):
            keys.add_site(server, name, public_key=path)
    assert [path.name for path in (server / "keys").iterdir()] == ["north.pub"]


def test_a_revoked_key_cannot_be_added_again_but_the_site_can_return_with_a_new_one(server: Path) -> None:
    site = server.parent / "sites" / "north"
    keys.revoke_site(server, "north")
    with pytest.raises(ConfigError, match="was revoked"):
        keys.add_site(server, "north", public_key=site / "site.pub")
    with pytest.raises(ConfigError, match="site 'north' has no key"):
        keys.revoke_site(server, "north")
    (site / "site.key").unlink()
    keys.new_site_key(site)
    keys.add_site(server, "north", public_key=site / "site.pub")
    assert keys.site_keys(server)() == {public_key_pem(site / "site.pub")}


def test_an_invalid_file_among_the_keys_is_ignored(server: Path) -> None:
    (server / "keys" / "broken.pub").write_text("nothing")
    assert keys.site_keys(server)() == {public_key_pem(server / "keys" / "north.pub")}


class FakeFlower:
    """The nodes of a SuperLink: a key that was registered once cannot be registered again."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, str]] = {}

    def flwr(self, _: Path, *words: str) -> str:
        if words[:2] == ("supernode", "unregister"):
            self.nodes[words[2]] = (self.nodes[words[2]][0], "unregistered")
            return ""
        assert words[:2] == ("supernode", "register")
        pem = public_key_pem(Path(words[2]))
        if pem in {known for known, _ in self.nodes.values()}:
            return '{"success": false, "error-message": "Public key already in use."}'
        self.nodes[str(100 + len(self.nodes))] = (pem, "registered")
        return f'{{"success": true, "node-id": "{99 + len(self.nodes)}"}}'

    def flwr_json(self, *_: object) -> list[dict[str, str]]:
        return [{"node-id": node, "status": status} for node, (_, status) in self.nodes.items()]


def test_the_superlink_gets_the_changes_made_while_it_was_stopped(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower = FakeFlower()
    monkeypatch.setattr(keys, "flwr", flower.flwr)
    monkeypatch.setattr(keys, "flwr_json", flower.flwr_json)
    keys.register_sites(server, read_server(server))
    assert keys.read_nodes(server) == {"north": "100"}
    keys.register_sites(server, read_server(server))  # again: nothing to do
    assert keys.read_nodes(server) == {"north": "100"}
    keys.revoke_site(server, "north")
    south = server.parent / "sites" / "south"
    keys.new_site_key(south)
    keys.add_site(server, "south", public_key=south / "site.pub")
    keys.register_sites(server, read_server(server))
    assert keys.read_nodes(server) == {"south": "101"}
    assert [status for _, status in flower.nodes.values()] == ["unregistered", "registered"]
    flower.nodes.clear()  # its state.db was deleted
    keys.register_sites(server, read_server(server))
    assert keys.read_nodes(server) == {"south": "100"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "@", "north"], "--public-key FILE"),
        (["add", "@", "north", "--site-folder", "@"], "is not empty"),
        (["revoke", "@", "north"], "sites with a key: none"),
        (["revoke", "@", "nobody"], "site 'nobody' has no key"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spherefed(monkeypatch, "deploy", *[word.replace("@", str(folder / "server")) for word in words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert read_server(folder / "server").sites == ("north", "south")
