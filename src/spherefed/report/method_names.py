"""Names of methods, derived from the experiment alone.

A name consists of the base algorithm (FedAvg, FedProx, …), the overlay (SphereFed, BABU, or the fields that differ from
plain training) and the stage (trained, calibrated). If two experiments get the same name, their differences are
appended, or the names of their folders if there are many.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from spherefed.schema import differences
from spherefed.server.validation import printable

Experiment = Mapping[str, Any]
MAX_LABEL = 60
"""Characters of differences in a name; with more, the name of the folder is shown instead."""
_DIGEST = "sha256"

_CALIBRATIONS = {
    "ffc": "FFC",
    "ffc-gcv": "FFC (GCV)",
    "ffc-balanced": "balanced FFC",
    "ccvr": "CCVR",
    "oracle": "oracle",
    "ncm": "class means",
    "lda": "LDA",
    "fedcof": "FedCOF",
}
_FEATURE_MAPS = {"fourier": "random Fourier features", "relu": "random ReLU features"}
_CORRECTIONS = {"scaffold": "SCAFFOLD", "feddyn": "FedDyn", "moon": "MOON"}
_PERSONALIZATIONS = {"local-ffc": "local FFC", "blended-ffc": "blended FFC"}
_SERVERS = {"adam": "FedAdam", "yogi": "FedYogi", "adagrad": "FedAdagrad"}
_SHARES = {"encoder": "FedRep", "head": "LG-FedAvg"}


def base_name(experiment: Experiment) -> str:
    """The base algorithm.

    >>> base_name({"algorithm": {"prox_mu": 0.01, "server": {"kind": "sgd", "lr": 1.0, "momentum": 0.0}}})
    'FedProx'
    >>> base_name({"algorithm": {"server": {"kind": "adam", "lr": 0.01}}})
    'FedAdam'
    """
    correction = kind_of(_at(experiment, "algorithm.correction", "none"))
    share = str(_at(experiment, "algorithm.share", "all"))
    parts = [names[key] for names, key in ((_SHARES, share), (_CORRECTIONS, correction)) if key in names]
    if correction != "feddyn" and _at(experiment, "algorithm.prox_mu", 0.0):  # for FedDyn, prox_mu is its α
        parts.append("FedProx")
    if _at(experiment, "algorithm.normalize_steps", False):
        parts.append("FedNova")
    server = kind_of(_at(experiment, "algorithm.server", "sgd"))
    momentum = _at(experiment, "algorithm.server.momentum", 0.0) if server == "sgd" else 0.0
    if server in _SERVERS:
        parts.append(_SERVERS[server])
    elif server != "sgd" or momentum or _at(experiment, "algorithm.server.lr", 1.0) != 1.0:
        parts.append(f"FedOpt ({server}{' momentum' if momentum else ''})")
    return " + ".join(parts) or "FedAvg"


def is_spherefed(experiment: Experiment) -> bool:
    """Whether training is SphereFed's: fixed orthonormal head, unit features, MSE."""
    return _training_fields(experiment) == ("orthonormal", True, "mse")


def is_one_shot(experiment: Experiment) -> bool:
    """A frozen encoder and no rounds: the calibration computes the head from one upload."""
    return experiment.get("rounds") == 0


def is_plain(experiment: Experiment) -> bool:
    """Whether there is no overlay: learned head, features not normalized, cross-entropy."""
    return _training_fields(experiment) == ("learned", False, "ce")


def method_name(experiment: Experiment) -> str:
    """The base algorithm and its overlay in training."""
    if is_one_shot(experiment):
        return _one_shot_name(experiment, "untrained head")
    base = base_name(experiment)
    if is_spherefed(experiment):
        return "SphereFed" if base == "FedAvg" else f"{base} + SphereFed"
    head, normalize, loss = _training_fields(experiment)
    name = f"{base} + BABU" if head == "random" else base
    extras = [
        *([loss] if loss != "ce" else []),
        *([f"{head} head"] if head not in ("learned", "random") else []),
        *(["unit features"] if normalize else []),
    ]
    return ", ".join([name, *extras])


def stage_names(experiment: Experiment) -> tuple[str, str]:
    """The names of the model after training and after calibration."""
    name, calibration = method_name(experiment), kind_of(experiment.get("calibration"))
    suffix = _CALIBRATIONS.get(calibration, calibration)
    if is_one_shot(experiment):
        return name, _one_shot_name(experiment, suffix)
    if not is_spherefed(experiment):
        return name, f"{name} + {suffix}"
    if calibration == "none":
        return f"{name} without FFC", name
    return f"{name} before {suffix}", name if calibration == "ffc" else f"{name} with {suffix}"


def personal_name(experiment: Experiment) -> str:
    """The name of the clients' personal models.

    >>> personal_name({"personalization": {"kind": "fine-tune", "part": "head"}})
    'FedAvg + fine-tuning of the head'
    """
    kind = kind_of(experiment.get("personalization"))
    part = _at(experiment, "personalization.part", "all")
    named = {"fine-tune": "fine-tuning" if part == "all" else f"fine-tuning of the {part}"} | _PERSONALIZATIONS
    return method_name(experiment) + ("" if kind == "none" else f" + {named.get(kind, kind)}")


def distinguish(name: str, experiments: Sequence[Experiment], folders: Sequence[str] = ()) -> list[str]:
    """Make one name unique for several experiments: append the fields in which they differ.

    If these are too long for a table and `folders` names each experiment, its folder is appended instead; a page lists
    what differs.

    >>> distinguish("FedAvg", [{"local": {"lr": 0.1, "epochs": 5}}, {"local": {"lr": 0.5, "epochs": 5}}])
    ['FedAvg (local.lr 0.1)', 'FedAvg (local.lr 0.5)']
    """
    if len(experiments) == 1:
        return [name]
    pairs = combinations(experiments, 2)
    paths = list(dict.fromkeys(line.partition(": ")[0] for pair in pairs for line in differences(*pair)))
    # The experiment's name, digests and the number of stacked models say least; they are shown only if the other fields
    # are not enough.
    telling = [path for path in paths if path not in ("name", "stack") and not path.endswith(_DIGEST)]
    choices = (telling, [*telling, *(["name"] if "name" in paths else [])], paths)
    texts = [[_values(experiment, shown) for experiment in experiments] for shown in choices]
    chosen = next((each for each in texts if len(set(each)) == len(experiments)), texts[-1])
    if folders:
        chosen = [f if len(text) > MAX_LABEL else text for text, f in zip(chosen, folders, strict=True)]
    return [f"{name} ({text})" for text in chosen]


def kind_of(value: Any) -> str:
    """The `kind` of a component in plain data, printable on one line; "none" if there is no component."""
    if isinstance(value, Mapping):
        return printable(value.get("kind", "none"))
    return "none" if value is None else printable(value)


def _one_shot_name(experiment: Experiment, head: str) -> str:
    """What one upload gives, and what it is computed on."""
    mapped = kind_of(_at(experiment, "model.feature_map", None))
    encoder = kind_of(_at(experiment, "model.encoder", "mlp"))
    features = [] if encoder == "flatten" else [f"frozen {encoder}"]
    features += [] if mapped == "none" else [_FEATURE_MAPS.get(mapped, mapped)]
    return ", ".join([f"one-shot {head}", *(features or ["pixels"]), "0 rounds"])


def _training_fields(experiment: Experiment) -> tuple[str, bool, str]:
    return (
        kind_of(_at(experiment, "model.head", "learned")),
        bool(_at(experiment, "model.normalize", False)),
        kind_of(_at(experiment, "loss", "ce")),
    )


def _values(experiment: Experiment, paths: Sequence[str]) -> str:
    """`path value` for each path that this experiment has; the value of a component is its kind."""
    texts = []
    for path in paths:
        value = _at(experiment, path, _MISSING)
        if value is not _MISSING:
            plain = isinstance(value, str | Mapping) or value is None
            text = kind_of(value) if plain else printable(json.dumps(value, ensure_ascii=False))
            text = text[:12] if path.endswith(_DIGEST) else text
            texts.append(f"{path} {text}")
    return ", ".join(texts)


_MISSING = object()


def _at(plain: Any, path: str, default: Any) -> Any:
    """The value at a dotted path of nested plain data."""
    for name in path.split("."):
        if not isinstance(plain, Mapping) or name not in plain:
            return default
        plain = plain[name]
    return plain
