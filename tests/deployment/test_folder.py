"""`spherefed deploy`: what it writes, and what it says when something is wrong."""

import stat
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from spherefed.cli import main
from spherefed.deployment.folder import init, read_server, read_site
from spherefed.errors import ConfigError


def spherefed(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["spherefed", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "d", ["north", "south"], address="fl.example.org", port=9443)
    return tmp_path / "d"


def test_private_keys_are_for_their_owner_only(folder: Path) -> None:
    keys = [*folder.rglob("*.key")]
    assert {key.name for key in keys} == {"ca.key", "server.key", "site.key"}
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert not [key for key in (folder / "server").rglob("*.key") if key.name != "server.key"]


def test_the_servers_certificate_is_signed_and_names_its_address(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


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
    assert (site.client, site.server, site.memory) == (1, "fl.example.org:9443", str(folder / "sites/south/memory"))
    assert "sites/south/" in (folder / "README.md").read_text()
    assert "@" not in (folder / "README.md").read_text()


def test_paths_of_a_site_are_relative_to_its_folder(folder: Path) -> None:
    file = folder / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace('data = ""', 'data = "folder:images"'))
    assert read_site(folder / "sites" / "north").data == f"folder:{folder / 'sites/north/images'}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site", "North"], "small letters"),
        (["--site", "a", "--site", "a"], "name of its own"),
        (["--site", "a", "--insecure", "--address", "10.0.0.1"], "only loopback is allowed"),
        (["--site", "a", "--port", "0"], "not in the range"),
        ([], "Missing option"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spherefed(monkeypatch, "deploy", "init", tmp_path / "d", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_an_existing_folder_is_never_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "ca" / "ca.key").read_bytes()
    assert spherefed(monkeypatch, "deploy", "init", folder, "--site", "a") == 2
    assert (folder / "ca" / "ca.key").read_bytes() == before


@pytest.mark.parametrize("verb", [["status"], ["run", "digits", "--out", "x"]])
def test_without_a_server_there_is_one_line(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "d", ["a"], address="127.0.0.1", port=1)
    words = [verb[0], tmp_path / "d" / "server", *verb[1:]]
    assert spherefed(monkeypatch, "deploy", *words) == 2
    said = capsys.readouterr().err
    assert "no server answers at 127.0.0.1:1" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "message"),
    [('clinet = 1\nserver = "x:1"\nsite = "a"', "did you mean 'client'"), ("client = ", "cannot be parsed")],
)
def test_a_damaged_site_file_is_named(content: str, message: str, folder: Path) -> None:
    (folder / "sites" / "north" / "site.toml").write_text(content)
    with pytest.raises(ConfigError, match=f"site.toml.*{message}"):
        read_site(folder / "sites" / "north")


def test_insecure_is_refused_where_a_site_file_was_edited(folder: Path) -> None:
    file = folder / "sites" / "north" / "site.toml"
    file.write_text(file.read_text().replace("insecure = false", "insecure = true"))
    with pytest.raises(ConfigError, match="only loopback"):
        read_site(folder / "sites" / "north")


def test_without_flower_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("spherefed.engines.flower", "spherefed.deployment"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ConfigError, match=r"pip install 'spherefed\[flower\]'"):
        import spherefed.deployment.app  # noqa: F401
