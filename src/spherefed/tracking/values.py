"""What a tracker is told: numbers and parameters from the files of a run, by name."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Values = dict[str, float]


def read_new_lines(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a JSON-lines file after `offset` bytes, and the offset behind them."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        whole, _, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole) + bool(whole)


def round_values(line: Mapping[str, Any]) -> Values:
    """Every number of a line of `rounds.jsonl`; values per client are summed, and clients are counted.

    >>> round_values({"round": 4, "loss": 0.5, "clients": [0, 3], "bytes_up": {"0": 10, "3": 20}})
    {'loss': 0.5, 'num_clients': 2.0, 'bytes_up': 30.0}
    """
    found = {}
    for name, value in line.items():
        if name == "clients":
            found["num_clients"] = float(len(value))
        elif name != "round":
            found.update(_numbers(name, value))
    return found


def result_values(result: Mapping[str, Any]) -> Values:
    """Every number of `result.json`, below `final/`.

    >>> result_values({"rounds": 5, "accuracy": {"trained": {"a": 0.9}}, "weights_sha256": "ab", "personal": None})
    {'final/rounds': 5.0, 'final/accuracy/trained/a': 0.9}
    """
    return {f"final/{name}": value for key, each in result.items() for name, value in _numbers(key, each)}


def parameters(plain: Any, path: str = "") -> dict[str, str]:
    """The fields of an experiment by their dotted path, as text.

    >>> parameters({"rounds": 5, "local": {"lr": 0.1}, "cohort": None, "data": {"mean": [0.5]}})
    {'rounds': '5', 'local.lr': '0.1', 'cohort': 'none', 'data.mean': '[0.5]'}
    """
    if isinstance(plain, Mapping):
        return {
            k: v
            for name, each in plain.items()
            for k, v in parameters(each, f"{path}.{name}" if path else name).items()
        }
    return {path: "none" if plain is None else plain if isinstance(plain, str) else json.dumps(plain)}


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
    elif isinstance(value, Mapping) and value and all(str(key).isdigit() for key in value):  # one value per client
        numbers = [each for each in value.values() if isinstance(each, int | float)]
        if numbers:
            yield name, float(sum(numbers))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(f"{name}/{key}", each)
