"""What differs between experiments, and what they share, as tables of fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spherefed.report.groups import Group
from spherefed.report.tables import Cells

ABSENT = "–"


def flat_fields(plain: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every field by its dotted path, as text.

    >>> flat_fields({"local": {"lr": 0.1, "epochs": 5}, "calibration": None})
    {'local.lr': '0.1', 'local.epochs': '5', 'calibration': 'none'}
    """
    fields: dict[str, str] = {}
    for name, value in plain.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            fields |= flat_fields(value, f"{path}.")
        elif isinstance(value, str):
            fields[path] = value
        else:
            fields[path] = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return fields


def differing_fields(groups: Sequence[Group]) -> Cells:
    """One line per field that differs, one column per group."""
    flat = [flat_fields(group.experiment) for group in groups]
    paths = list(dict.fromkeys(path for fields in flat for path in fields))
    # A component that some experiments do not have: its kind is "none" there, and it needs no line of its own.
    optional = {path for path in paths if any(other.startswith(f"{path}.") for other in paths)}
    for fields in flat:
        fields.update({f"{path}.kind": "none" for path in optional & fields.keys() if f"{path}.kind" in paths})
    lines = []
    for path in (path for path in paths if path not in optional):
        values = [fields.get(path, ABSENT) for fields in flat]
        if len(set(values)) > 1:
            lines.append((path, *values))
    return Cells(columns=("field", *(group.name for group in groups)), lines=tuple(lines))


def shared_fields(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The fields that all experiments have in common, with their values."""
    flat = [flat_fields(group.experiment) for group in groups]
    return [(path, value) for path, value in flat[0].items() if all(fields.get(path) == value for fields in flat)]
