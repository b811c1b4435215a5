"""The peers' environments, .bench/venv-NAME: `python benchmarks/environments.py` makes those that are missing.

A peer that cannot be installed does not stop anybody: the tables say why it is not measured.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLACE = HERE.parent / ".bench"
LIST = HERE / "peers"


class UnavailableError(Exception):
    """A peer that cannot take part, with the cause in one line."""


def interpreter(name: str) -> Path:
    """The Python of a peer's environment; `UnavailableError` if it was not made, or from another list."""
    ready = PLACE / f"venv-{name}" / "ready"
    if ready.exists() and ready.read_text() == _list(name).read_text():
        return ready.parent / "bin" / "python"
    log = PLACE / f"{name}.log"
    failed = [line for line in log.read_text().splitlines() if line.startswith("ERROR")] if log.exists() else []
    raise UnavailableError(failed[-1] if failed else "not installed; run benchmarks/environments.py")


def make(name: str) -> None:
    """torch first and by its exact version, with what it needs; then the list, which is complete, as it stands."""
    folder = PLACE / f"venv-{name}"
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    torch = next(line for line in _list(name).read_text().splitlines() if line.startswith("torch=="))
    PLACE.mkdir(exist_ok=True)
    with (PLACE / f"{name}.log").open("w") as log:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, torch],
            [*pip, "--no-deps", "-r", str(_list(name))],
        ):
            print(*command, file=log, flush=True)
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
                return
    (folder / "ready").write_text(_list(name).read_text())


def version(name: str) -> str:
    """The first line of a peer's list: the peer itself."""
    return next(line for line in _list(name).read_text().splitlines() if "==" in line).replace("==", " ")


def _list(name: str) -> Path:
    return LIST / f"requirements-{name}.txt"


def main() -> None:
    for name in sorted(path.stem.removeprefix("requirements-") for path in LIST.glob("requirements-*.txt")):
        try:
            interpreter(name)
        except UnavailableError:
            print(f"installing {version(name)} into {PLACE.name}/venv-{name}", flush=True)
            make(name)


if __name__ == "__main__":
    main()
