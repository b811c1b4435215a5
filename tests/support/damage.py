"""Ways to damage a file."""

from pathlib import Path


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 200)
