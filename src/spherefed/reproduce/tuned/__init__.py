"""What `spherefed reproduce tuning` and its like chose: one file of JSON per scale and search."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

from spherefed.calibration import Ccvr


def tuned_rates(scale: str) -> dict[str, float]:
    """The learning rates that `spherefed reproduce tuning` chose for a scale; empty if it was not run."""
    chosen = {name: entry["chosen"] for name, entry in tuned_methods(scale).items()}
    return {name: float(values["local.lr"]) for name, values in chosen.items() if "local.lr" in values}


def tuned_personal(scale: str) -> dict[str, dict[str, float]]:
    """What `spherefed reproduce tuning-personal` chose for the methods of Table 8, by path; empty if it was not run."""
    found = tuned_methods(scale)
    return {name: entry["chosen"] for name, entry in found.items() if entry["judged_by"] == "personal"}


def tuned_ccvr(scale: str, start: Ccvr, *, on: str = "fedavg", setting: str = "") -> Ccvr:
    """CCVR with the refit, and with or without Tukey's transform, that were best on the validation split.

    `on` is the method whose features are calibrated, `setting` the end of the names of what was tuned.
    """
    methods, transforms = tuned_methods(scale), {f"{on}+ccvr{setting}": 1.0, f"{on}+ccvr-tukey{setting}": 0.5}
    found = {name: methods[name] for name in transforms if name in methods}
    if not found:
        return start
    best = max(found, key=lambda name: max(each["calibrated"] for each in found[name]["tried"]))
    rate = float(found[best]["chosen"]["calibration.refit.lr"])
    return replace(start, tukey=transforms[best], refit=replace(start.refit, lr=rate))


def tuned_temperature(scale: str, start: float) -> float:
    """The τ that was best on the validation split; if it was not tuned, where tuning starts."""
    found = tuned_methods(scale).get("fedavg+temperature")
    return start if found is None else float(found["chosen"]["loss.scale"])


def tuned_methods(scale: str) -> dict[str, Any]:
    """What tuning tried and chose, by method."""
    found: dict[str, Any] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.startswith(f"{scale}-tuning"):
            found |= json.loads(file.read_text(encoding="utf-8"))["methods"]
    return found
