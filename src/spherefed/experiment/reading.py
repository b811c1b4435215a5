"""Read experiments from TOML, JSON and run directories, and change them by `--set path=value`."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from spherefed.components import is_component_name
from spherefed.errors import ConfigError
from spherefed.experiment.values import Experiment
from spherefed.files import parse_json
from spherefed.schema import from_plain, shown, to_plain, with_path

MAX_DEPTH = 20
"""Dots in the path of a setting."""


def experiment_from_mapping(plain: Mapping[str, Any]) -> Experiment:
    """From nested plain data, strictly: unknown or mistyped keys are refused with the nearest valid name."""
    try:
        experiment: Experiment = from_plain(Experiment, _with_frozen_model(plain))
    except RecursionError:
        raise ConfigError("the experiment has tables or lists that are nested too deeply") from None
    except ConfigError as error:
        raise ConfigError(f"{error}{_advice(str(error))}") from error
    return experiment


def _advice(message: str) -> str:
    """Where a field is described, for a message that begins with its path and gives no other advice."""
    path = re.match(r"([a-z_]+)[a-z_.]* (must|is required)", message)
    known = path is not None and path[1] in {field.name for field in fields(Experiment)}
    return "" if path is None or not known or ";" in message else f"; `spherefed fields {path[1]}` describes it"


def _with_frozen_model(plain: Any) -> Any:
    """`model.encoder.frozen` means `model.frozen`, unless it is a field of a user's own encoder."""
    model = plain.get("model") if isinstance(plain, Mapping) else None
    encoder = model.get("encoder") if isinstance(model, Mapping) else None
    if model is None or not isinstance(encoder, Mapping) or "frozen" not in encoder:
        return plain
    if is_component_name(encoder.get("kind")):
        return plain
    rest = {name: value for name, value in encoder.items() if name != "frozen"}
    return {**plain, "model": {**model, "encoder": rest, "frozen": encoder["frozen"]}}


def experiment_to_json(experiment: Experiment) -> str:
    """As one line of JSON, which `experiment_from_json` reads."""
    return json.dumps(to_plain(experiment), sort_keys=True)


def experiment_from_json(text: str) -> Experiment:
    """From JSON, as strictly as `experiment_from_mapping`."""
    try:
        plain = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"the experiment cannot be parsed as JSON: {error}") from error
    return experiment_from_mapping(plain)


def with_settings(experiment: Experiment, settings: Iterable[str]) -> Experiment:
    """The experiment with `path=value` settings applied, values written as in TOML; bare words are texts."""
    changes: list[tuple[str, Any]] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set wants path=value, got {shown(setting)}; for example --set local.lr=0.1")
        if path.count(".") > MAX_DEPTH:
            raise ConfigError(f"--set {shown(path)}: no field lies deeper than {MAX_DEPTH} dots")
        changes.append((path.strip(), _value(text.strip())))
    return with_fields(experiment, changes)


def with_fields(experiment: Experiment, changes: Iterable[tuple[str, Any]]) -> Experiment:
    """The experiment with these fields, each a dotted path and its plain value.

    A kind resets the other fields of its part, so it is applied before them, wherever it stands. Another correction is
    weighted as it was published, unless `algorithm.weigh` is among the changes.
    """
    ordered: list[tuple[str, Any]] = []
    for path, value in changes:
        fields = path.removesuffix("kind") if path.endswith(".kind") else None  # partition.kind → partition.
        later = [i for i, (name, _) in enumerate(ordered) if fields and name.startswith(fields) and name != path]
        ordered.insert(later[0] if later else len(ordered), (path, value))
    plain, paths = to_plain(experiment), [path for path, _ in ordered]
    for path, value in ordered:
        plain = with_path(plain, path, value)
    algorithm = plain.get("algorithm")
    corrected = {*paths} & {"algorithm.correction", "algorithm.correction.kind"}
    if corrected and "algorithm.weigh" not in paths and isinstance(algorithm, dict):
        algorithm.pop("weigh", None)  # another correction has other weights
    return experiment_from_mapping(plain)


def read_experiment(path: Path) -> Experiment:
    """From a `.toml` or `.json` file, or from a run directory."""
    try:
        if path.is_dir():
            path = path / "experiment.json"
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the experiment {path}: {error.strerror}; "
            "give a recipe by name, a .toml or .json file, or a run directory"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file: {error.reason}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"cannot read the experiment {shown(str(path))}: {error}") from error
    try:
        plain = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML, for example: rounds = 10"
        raise ConfigError(f"{path} cannot be parsed: {error}; write {kind}") from error
    try:
        return experiment_from_mapping(plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text.startswith(("[", "{", '"', "'")):
            raise ConfigError(
                f"--set cannot read the value {text!r}: {error}; write it as in TOML, with texts in quotes: "
                """widths=[64, 32], classes=["cat", "dog"], encoder={kind = "mlp"}"""
            ) from None
        return text
    except (ValueError, RecursionError) as error:  # too many digits, or nested too deeply
        raise ConfigError(f"the value {shown(text)} cannot be parsed: {error}") from error
