"""The roles of a server and of a site: their port, and what their programs write."""

import socket
import sys
from pathlib import Path

import pytest

from spherefed.deployment.folder import init
from spherefed.deployment.programs import environment
from spherefed.deployment.roles import _started, serve_role
from spherefed.errors import ConfigError


def test_a_port_in_use_names_both_files_that_contain_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        init(tmp_path / "clinic", ["north"], address="127.0.0.1", port=port, insecure=True)
        with pytest.raises(ConfigError, match=rf"port {port} is in use; .* server.toml and .* every site.toml"):
            serve_role(tmp_path / "clinic" / "server", print)
    assert f":{port}" in (tmp_path / "clinic" / "sites" / "north" / "site.toml").read_text(encoding="utf-8")


def test_what_a_started_program_writes_only_its_user_can_read(tmp_path: Path) -> None:
    """SQLite makes state.db as open() does, with the permissions that the umask leaves."""
    make = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('create table t (x)')"
    with _started([sys.executable, "-c", make, str(tmp_path / "state.db")], environment(tmp_path)) as process:
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
