"""Exported models: the same scores as the run's model, with a card, without the run directory and without pickles."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from spherefed.errors import ConfigError, RunError
from spherefed.experiment import Data, Experiment, Model
from spherefed.files import read_tensors, write_tensors
from spherefed.nn.encoders import Mlp
from spherefed.runs.directory import RunDirectory
from spherefed.runs.export import export_run
from spherefed.runs.loading import load
from spherefed.runs.runner import run_to_end
from spherefed.server.algorithms import fedrep
from support.small import blobs, save_arrays, tiny


@pytest.fixture
def run(experiment: Experiment, tmp_path: Path) -> Path:
    run_to_end(experiment, tmp_path / "run")
    return tmp_path / "run"


def test_a_file_of_weights_loads_without_its_run_and_gives_the_same_scores(run: Path, tmp_path: Path) -> None:
    inputs = blobs().test.inputs
    with torch.no_grad():
        expected = load(run)(inputs)
    done = export_run(run, tmp_path / "model.safetensors")
    shutil.rmtree(run)
    module = load(done.file)
    assert not module.training
    with torch.no_grad():
        assert torch.equal(module(inputs), expected)


def test_a_file_that_is_no_card_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "README.md"
    notes.write_text("notes", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no model card, so it is not overwritten"):
        export_run(run, tmp_path / "README.safetensors")
    assert [*tmp_path.glob("README*")] == [notes]
    export_run(run, tmp_path / "model.safetensors")
    export_run(run, tmp_path / "model.safetensors")  # over its own card


def test_the_card_has_the_figures_of_the_run(run: Path, tmp_path: Path) -> None:
    done = export_run(run, tmp_path / "model.safetensors")
    assert done.card == tmp_path / "model.md"
    card, result = done.card.read_text(encoding="utf-8"), RunDirectory(run).result()
    assert card.startswith("---\nlibrary_name: spherefed\n")
    for stage, values in result["accuracy"].items():
        for name, value in values.items():
            assert f"| {stage} | {name} | {value:.2%} |" in card
    assert done.sha256 in card
    assert "3 rounds, 2 local epochs, batch size 8, learning rate 0.5" in card
    assert '"momentum": 0.5' in card
    stored = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    assert stored["experiment_digest"] in card


@pytest.mark.slow
def test_a_program_gives_the_scores_for_any_number_of_inputs_and_holds_no_pickle(run: Path, tmp_path: Path) -> None:
    done = export_run(run, tmp_path / "model.pt2")
    program, module = torch.export.load(done.file).module(), load(run)
    for num in (1, 2, 7):
        inputs = blobs().test.inputs[:num]
        with torch.no_grad():
            torch.testing.assert_close(program(inputs), module(inputs))
    with zipfile.ZipFile(done.file) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, content in inside.items() if content.startswith((b"\x80", b"PK"))]
    assert "torch.export.load" in done.card.read_text(encoding="utf-8")


def test_if_a_part_stays_with_clients_the_model_of_one_of_them_is_exported(tmp_path: Path) -> None:
    name = save_arrays(tmp_path / "data.npz", blobs())
    model = Model(encoder=Mlp(widths=(8,)))  # with a learned head
    experiment = tiny(data=Data(name=name, held_out=0.2), algorithm=fedrep(), calibration=None, model=model)
    run_to_end(experiment, tmp_path / "run")
    with pytest.raises(RunError, match="name the one"):
        export_run(tmp_path / "run", tmp_path / "model.safetensors")
    heads = [
        load(export_run(tmp_path / "run", tmp_path / "new" / f"{client}.safetensors", client=client).file).head.weight
        for client in (0, 1)
    ]
    assert not torch.equal(*heads)
    assert torch.equal(heads[1], load(tmp_path / "run", 1).head.weight)
    assert "The model of client 1." in (tmp_path / "new" / "1.md").read_text(encoding="utf-8")


def test_a_client_is_refused_where_all_have_one_model(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has one model for all clients, got client 0; leave the client out"):
        export_run(run, tmp_path / "model.safetensors", client=0)
    assert not list(tmp_path.glob("model.*"))


def test_other_endings_and_damaged_files_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.safetensors .* or \.pt2 .*, got '.*model\.onnx'"):
        export_run(run, tmp_path / "model.onnx")
    file = export_run(run, tmp_path / "model.safetensors").file
    tensors, metadata = read_tensors(file)
    write_tensors(file, {name: tensor + 1 for name, tensor in tensors.items()}, metadata)
    with pytest.raises(RunError, match="another SHA-256"):
        load(file)
    write_tensors(file, tensors, {**metadata, "dataset": "{"})
    with pytest.raises(RunError, match="damaged"):
        load(file)
    write_tensors(file, tensors, {})
    with pytest.raises(RunError, match="no file of 'spherefed export'"):
        load(file)


@pytest.mark.parametrize(
    "change",
    [
        {"input_dtype": "float99"},
        {"input_dtype": "load"},
        {"input_shape": ["a"]},
        {"input_shape": [[1]]},
        {"input_shape": [-1, 8, 8]},
        {"input_shape": [1.5, 8, 8]},
        {"classes": "abc"},
        {"classes": []},
    ],
    ids=str,
)
def test_a_wrong_description_of_the_inputs_is_refused(change: dict[str, Any], run: Path, tmp_path: Path) -> None:
    file = export_run(run, tmp_path / "model.safetensors").file
    tensors, metadata = read_tensors(file)
    described = json.loads(metadata["dataset"]) | change
    write_tensors(file, tensors, {**metadata, "dataset": json.dumps(described)})
    with pytest.raises(RunError, match="is damaged"):
        load(file)


@pytest.mark.parametrize(("dtype", "metadata"), [("F32", None), ("F8_E8M0", {}), ("F4", {})])
def test_a_header_that_torch_cannot_read_is_refused(dtype: str, metadata: Any, tmp_path: Path) -> None:
    size = 4 if dtype == "F32" else 1
    tensor = {"dtype": dtype, "shape": [2 if dtype == "F4" else 1], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": metadata, "a": tensor}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(RunError, match=r"a\.safetensors (cannot be read|is no file)"):
        load(tmp_path / "a.safetensors")
