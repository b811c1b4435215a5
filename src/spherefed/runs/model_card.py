"""The model card of an exported model: what it is, how it was trained and measured, and how to use it."""

import json
from collections.abc import Mapping
from typing import Any

from spherefed.experiment import Experiment
from spherefed.schema import kind_of, to_plain
from spherefed.tensors import Tensors, digest, num_bytes

MAX_CLASSES = 20
"""Names of classes on a card; the file of weights has all of them."""
CARD_BEGINS = "---\nlibrary_name: spherefed\n"


def model_card(
    file_name: str,
    experiment: Experiment,
    *,
    data: Mapping[str, Any],
    environment: Mapping[str, Any],
    result: Mapping[str, Any],
    tensors: Tensors,
    client: int | None = None,
) -> str:
    """Markdown with the header that model hubs read. Every figure is from the run directory."""
    num_values = sum(tensor.numel() for tensor in tensors.values())
    lines = [
        *CARD_BEGINS.splitlines(),
        "tags: [federated-learning, image-classification]"
        if len(data["input_shape"]) == 3
        else "tags: [federated-learning]",
        "---",
        f"# {experiment.name}, seed {experiment.seed}",
        "",
        f"A classifier for {len(data['classes'])} classes, trained by federated learning with spherefed "
        f"{environment['spherefed']}." + (f" The model of client {client}." if client is not None else ""),
        "",
        f"- file: `{file_name}`, {num_values:,} numbers, {num_bytes(tensors) / 1e6:.3g} MB",
        f"- SHA-256 of the tensors: `{digest(tensors)}`",
        f"- encoder: `{kind_of(experiment.model.encoder)}`; head: `{kind_of(experiment.model.head)}`; "
        f"unit features: {'yes' if experiment.model.normalize else 'no'}",
        "",
        *_inputs(data),
        *_training(experiment, data, environment),
        *_measured(result),
        *_use(file_name),
    ]
    return "\n".join(lines) + "\n"


def _inputs(data: Mapping[str, Any]) -> list[str]:
    shape = ", ".join(map(str, data["input_shape"]))
    normalization = data.get("normalization", "unknown")
    if normalization == "unknown":
        told = "not recorded by the release that made the run"
    elif normalization is None:
        told = "none; values as they are stored"
    else:
        scale, mean, std = (normalization[key] for key in ("scale", "mean", "std"))
        told = f"(x · {scale:.9g} − mean) / std with mean {mean}, std {std}"
    names = ", ".join(data["classes"][:MAX_CLASSES]) + (", …" if len(data["classes"]) > MAX_CLASSES else "")
    return [
        "## Inputs and classes",
        "",
        f"- inputs: (n, {shape}) {data.get('input_dtype', 'float32')}",
        f"- normalization: {told}",
        f"- classes: {names}",
        "",
    ]


def _training(experiment: Experiment, data: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    local = experiment.local
    plain = to_plain(experiment)
    steps = (
        f"{local.epochs} local epochs, batch size {local.batch_size}, learning rate {local.lr:g}"
        if local
        else "no local training"
    )
    return [
        "## Training",
        "",
        f"- data: {data['name']}, {data['num_train']:,} training examples of {experiment.partition.clients} clients, "
        f"partition `{json.dumps(plain['partition'])}`",
        f"- {experiment.rounds} rounds, {steps}",
        f"- algorithm: `{json.dumps(plain['algorithm'])}`",
        f"- loss: `{json.dumps(plain['loss'])}`; calibration: `{json.dumps(plain['calibration'])}`",
        f"- experiment `{environment['experiment_digest']}`, numerics version {environment['numerics_version']}, "
        f"torch {environment['torch']}, started {environment['started']}",
        *(f"- own component: `{name}`" for name in environment.get("components", {})),
        "",
    ]


def _measured(result: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {stage} | {name} | {value:.2%} |"
        for stage, accuracies in result["accuracy"].items()
        for name, value in accuracies.items()
    ]
    if not rows:
        return ["## Accuracy", "", "Not measured.", ""]
    return ["## Accuracy", "", "| stage | model/test set | accuracy |", "|---|---|---|", *rows, ""]


def _use(file_name: str) -> list[str]:
    if file_name.endswith(".pt2"):
        code = ["import torch", "", f'model = torch.export.load("{file_name}").module()']
    else:
        code = ["import spherefed as sf", "", f'model = sf.load("{file_name}")']
    return [
        "## Use",
        "",
        "```python",
        *code,
        "scores = model(inputs)  # (n, classes); inputs normalized as above",
        "```",
    ]
