"""The programs of a server and of a site are started so that what they write is private."""

import sys
from pathlib import Path

from spherefed.deployment.programs import environment
from spherefed.deployment.roles import _started


def test_what_a_started_program_writes_only_its_user_can_read(tmp_path: Path) -> None:
    """SQLite makes state.db as open() does, with the permissions that the umask leaves."""
    make = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('create table t (x)')"
    with _started([sys.executable, "-c", make, str(tmp_path / "state.db")], environment(tmp_path)) as process:
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
