"""`spherefed deploy`: what it writes, and what it says when something is wrong."""

import sys
from pathlib import Path

import pytest

from spherefed.deployment.folder import init
from spherefed.errors import ConfigError
from support.command_line import spherefed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site", "North"], "lowercase letters"),
        (["--site", "a", "--site", "a"], "must be unique"),
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
    assert spherefed(monkeypatch, "deploy", *words) == 1
    said = capsys.readouterr().err
    assert "no server answers at 127.0.0.1:1" in said
    assert "Traceback" not in said


def test_without_flower_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("spherefed.engines.flower", "spherefed.deployment"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[flower\]'"):
        import spherefed.deployment.app  # noqa: F401
