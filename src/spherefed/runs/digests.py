"""Digests of the files of a run, in `digests.json` and in its checkpoints.

They detect change: a damaged disk, a file edited by hand, a file of another run. They are not signatures: whoever can
write to the directory can write matching digests too.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from spherefed.errors import RunError
from spherefed.files import json_bytes, parse_json, read_file, write_bytes

DIGESTS = "digests.json"
CLIENT_STATES = "client_states"
"""The entry of all client states together: the digest of their digests."""
BEGUN = ("experiment.json", "environment.json", "dataset.json", "partition.safetensors")
"""Files that are written when a run begins, and never again."""
FINISHED = (
    "start.json",
    "rounds.jsonl",
    "rejections.jsonl",
    "model.safetensors",
    "diagnostics.safetensors",
    "result.json",
    "statistics.safetensors",
)
"""Files that are final when the run is finished; some runs have no rejections or statistics.

`finish_files` writes them in this order: a run with a result is finished, and a change of its head can be repeated
until the new statistics are there. A new run writes its statistics before all of these."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def begin_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the first files of a run in this order, the last one after their digests."""
    digests = {name: [sha256(content)] for name, content in contents.items()}
    *first, last = contents
    for name in first:
        write_bytes(folder / name, contents[name])
    write_bytes(folder / DIGESTS, json_bytes(digests))
    write_bytes(folder / last, contents[last])


def finish_files(folder: Path, contents: Mapping[str, bytes], *, client_states: str | None = None) -> None:
    """Write the last files of a run as `FINISHED` orders them, atomically, with digests of everything that is final.

    While they are replaced, the old and the new content are both valid: a run that is killed in between stays whole.
    `client_states` is the digest of all client states together.
    """
    before = stored_digests(folder)
    unlisted = [name for name in BEGUN if name not in before]  # of a run of an older release
    written = [*unlisted, *(name for name in FINISHED if name not in contents)]
    both = before | {name: [sha256(read_file(folder / name))] for name in written if (folder / name).exists()}
    if client_states is not None:
        both[CLIENT_STATES] = [client_states]
    new = {name: [sha256(content)] for name, content in contents.items()}
    both |= {name: [*dict.fromkeys([*before.get(name, ()), *values])] for name, values in new.items()}
    write_bytes(folder / DIGESTS, json_bytes(both))
    for name in sorted(contents, key=FINISHED.index):
        write_bytes(folder / name, contents[name])
    if any(len(both[name]) > 1 for name in new):
        write_bytes(folder / DIGESTS, json_bytes(both | new))


def stored_digests(folder: Path) -> dict[str, list[str]]:
    """The valid digests of each file; empty for a run that was written before there were digests."""
    path = folder / DIGESTS
    if not path.exists():
        _check_old(folder)
        return {}
    try:
        found = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    known = {*BEGUN, *FINISHED, CLIENT_STATES}
    if not isinstance(found, dict) or not found.keys() <= known or not all(map(_are_digests, found.values())):
        raise RunError(f"{path} is damaged: it must list SHA-256 digests of files of the run")
    return found


def check_files(folder: Path, names: Collection[str] = (*BEGUN, *FINISHED)) -> int:
    """Compare files with their digests; the number of files compared. Raises RunError for the first that differs."""
    stored = stored_digests(folder)
    if stored and (unlisted := [name for name in BEGUN if name not in stored]):
        raise RunError(f"{folder / DIGESTS} is damaged: it has no digest of {', '.join(unlisted)}")
    wanted = [name for name in names if name in stored]
    for name in wanted:
        try:
            found = sha256(read_file(folder / name))
        except OSError as error:
            raise RunError(f"{folder / name} cannot be read: {error.strerror}; {DIGESTS} lists it") from error
        if found not in stored[name]:
            raise RunError(
                f"{folder / name} is not as the run wrote it: its SHA-256 is {found[:12]}…, {DIGESTS} says "
                f"{stored[name][0][:12]}…; restore the file, or run the experiment again"
            )
    return len(wanted)


def _are_digests(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and len(one) == 64 for one in value)


def _check_old(folder: Path) -> None:
    """Runs with digests say so in environment.json, which every run has."""
    path = folder / "environment.json"
    if not (folder / "experiment.json").exists():
        return  # not a run: reported where it is read
    try:
        environment = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read, and {folder / DIGESTS} is missing: {error}") from error
    if isinstance(environment, dict) and environment.get("digests"):
        raise RunError(f"{folder / DIGESTS} is missing, so changes of the run cannot be detected; restore the file")
