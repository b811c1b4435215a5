"""Export the final model of a finished run: one file of weights or one program, and a model card beside it.

A file of weights (.safetensors) holds everything that `load` needs to build the network again, without the run
directory. A program (.pt2) is the network as `torch.export` traces it, which runs without this package.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spherefed.assembly import build_classifier
from spherefed.errors import ConfigError, ModelError, RunError
from spherefed.experiment import experiment_from_json, experiment_to_json, read_experiment
from spherefed.files import parse_json, read_file, read_tensors, write_bytes, write_tensors
from spherefed.nn.classifier import Classifier
from spherefed.runs.directory import RunDirectory, read_json
from spherefed.runs.loading import describe_inputs, load
from spherefed.runs.model_card import CARD_BEGINS, model_card
from spherefed.tensors import Tensors, digest, one_thread

WEIGHTS, PROGRAM = ".safetensors", ".pt2"
EXPORT_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an export, and the digest of the exported tensors."""

    file: Path
    card: Path
    sha256: str


def export_run(run_directory: Path, file: Path, *, client: int | None = None) -> Exported:
    """Write the final model to FILE (.safetensors or .pt2) and its model card to the same name with .md.

    `client` chooses whose model to export if a part of it stays with each client.
    """
    if file.suffix not in (WEIGHTS, PROGRAM):
        raise ConfigError(
            f"the file must end in {WEIGHTS} (weights) or {PROGRAM} (a torch.export program), got {str(file)!r}"
        )
    card = file.with_suffix(".md")
    if card.exists() and not read_file(card).startswith(CARD_BEGINS.encode()):
        raise ConfigError(
            f"{card} exists and is no model card, so it is not overwritten; choose another name for {file}"
        )
    directory = RunDirectory(run_directory)
    classifier = load(run_directory, client)
    data, environment = read_json(run_directory / "dataset.json"), read_json(run_directory / "environment.json")
    # Copies: some tensors may share storage, which a file of tensors cannot express.
    tensors = {name: tensor.detach().clone() for name, tensor in classifier.state_dict().items()}
    experiment = read_experiment(run_directory)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == WEIGHTS:
        write_tensors(file, tensors, _metadata(experiment_to_json(experiment), data, tensors))
    else:
        _write_program(classifier, data, file)
    text = model_card(
        file.name,
        experiment,
        data=data,
        environment=environment,
        result=directory.result(),
        tensors=tensors,
        client=client,
    )
    write_bytes(card, text.encode())
    return Exported(file, card, digest(tensors))


def load_exported(file: Path) -> Classifier:
    """The classifier in a file of weights that `export_run` wrote, in eval mode."""
    tensors, metadata = read_tensors(file)
    if metadata.get("spherefed_export") != EXPORT_VERSION:
        raise RunError(f"{file} is no file of 'spherefed export': give such a file, or a run directory")
    try:
        stored, experiment = parse_json(metadata["dataset"]), experiment_from_json(metadata["experiment"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{file}: the description of the model is damaged: {error}; export it again") from error
    shape, dtype, num_classes = describe_inputs(file, stored if isinstance(stored, dict) else {})
    if digest(tensors) != metadata.get("sha256"):
        raise RunError(f"{file} is damaged: its tensors have another SHA-256 than when it was written; export it again")
    classifier = build_classifier(experiment, shape, num_classes, dtype=dtype)
    try:
        classifier.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(f"{file} does not fit the network that its experiment describes: {error}") from error
    return classifier.eval()


def _metadata(experiment: str, data: dict[str, Any], tensors: Tensors) -> dict[str, str]:
    kept = ("name", "classes", "input_shape", "input_dtype", "normalization")
    return {
        "format": "pt",
        "spherefed_export": EXPORT_VERSION,
        "experiment": experiment,
        "dataset": json.dumps({key: data[key] for key in kept if key in data}, ensure_ascii=False),
        "sha256": digest(tensors),
    }


def _write_program(classifier: Classifier, data: dict[str, Any], file: Path) -> None:
    """The network for batches of any size. Inputs are normalized before, as in training."""
    dtype = getattr(torch, data.get("input_dtype", "float32"))
    example = torch.zeros(2, *data["input_shape"], dtype=dtype)
    try:
        with one_thread():
            batch = torch.export.Dim("batch", min=1)
            program = torch.export.export(classifier, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # whatever the tracer cannot follow in a user's own encoder
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"torch.export cannot trace this network: {reason}; export its weights: FILE{WEIGHTS}"
        ) from error
    program.example_inputs = None  # they would be stored as a pickle
    torch.export.save(program, file)
