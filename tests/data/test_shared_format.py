"""Sites that never see each other's data read them alike: one class list, one normalisation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spherefed.data import sources
from spherefed.data.shared_format import SharedFormat, normalization, without_examples
from spherefed.errors import ConfigError, DataError
from spherefed.experiment import experiment_from_mapping

CLASSES = ("benign", "malignant", "unclear")


def folder(path: Path, names: list[str]) -> str:
    for number, name in enumerate(names):
        (path / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (6, 6), (40 * number, index, 200)).save(path / name / f"{index}.png")
    return f"folder:{path}"


def arrays(path: Path, labels: list[int]) -> str:
    rng = np.random.default_rng(0)
    np.savez(path, images=rng.integers(0, 255, (len(labels), 6, 6), dtype=np.uint8), labels=np.array(labels))
    return f"arrays:{path}"


def test_a_folder_with_one_class_gets_that_classs_number(tmp_path: Path) -> None:
    name = folder(tmp_path / "site", ["unclear"])
    with pytest.raises(DataError, match="at least 2"):
        sources.load(name, tmp_path)
    data = SharedFormat(classes=CLASSES).apply_to(sources.load(name, tmp_path, min_classes=1))
    assert data.classes == CLASSES
    assert set(data.train.all_labels().tolist()) == {2}


def test_folders_are_read_by_name_whatever_their_order(tmp_path: Path) -> None:
    given = sources.load(folder(tmp_path / "site", ["benign", "unclear"]), tmp_path)
    data = SharedFormat(classes=("unclear", "malignant", "benign")).apply_to(given)
    assert torch.equal(data.train.all_labels(), 2 - 2 * given.train.all_labels())


def test_an_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    data = sources.load(folder(tmp_path / "site", ["benign", "malingant"]), tmp_path)
    with pytest.raises(DataError, match=r"'malingant'.*did you mean 'malignant'"):
        SharedFormat(classes=CLASSES).apply_to(data)


def test_numbers_in_arrays_are_positions_in_the_class_list(tmp_path: Path) -> None:
    data = sources.load(arrays(tmp_path / "a.npz", [0, 1, 1, 0, 1, 0]))
    assert SharedFormat(classes=CLASSES).apply_to(data).classes == CLASSES
    too_many = sources.load(arrays(tmp_path / "b.npz", [0, 1, 3, 0, 1, 0]))
    with pytest.raises(DataError, match="labels up to 3"):
        SharedFormat(classes=CLASSES).apply_to(too_many)


def test_one_normalization_for_all_whatever_the_pixels_are(tmp_path: Path) -> None:
    dark = sources.load(folder(tmp_path / "dark", ["benign", "unclear"]), tmp_path)
    other = sources.load(folder(tmp_path / "other", ["benign", "malignant", "unclear"]), tmp_path)
    assert normalization(dark) != normalization(other)
    told = SharedFormat(mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    assert normalization(told.apply_to(dark)) == normalization(told.apply_to(other))
    x = dark.train.inputs[:1]
    expected = (x / 255.0 - torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)) / torch.tensor([0.1, 0.2, 0.3]).view(
        1, 3, 1, 1
    )
    prepared = next(iter(told.apply_to(dark).train.in_order(1, device=torch.device("cpu"))))[0]
    assert torch.allclose(prepared, expected, atol=1e-5)
    with pytest.raises(DataError, match="3 channels"):
        SharedFormat(mean=(0.5,), std=(0.1,)).apply_to(dark)


def test_the_form_of_data_that_are_elsewhere() -> None:
    data = without_examples(CLASSES, (3, 6, 6))
    assert (data.input_shape, data.num_classes, len(data.train)) == ((3, 6, 6), 3, 0)


SITES = {
    "name": "x",
    "rounds": 1,
    "local": {"lr": 0.1},
    "data": {"name": "sites", "classes": list(CLASSES), "held_out": 0.2},
    "partition": {"kind": "sites", "clients": 3},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition": {"kind": "iid"}}, "needs partition.kind = 'sites'"),
        ({"data": {"name": "sites", "held_out": 0.2}}, "needs data.classes"),
        ({"data": {"name": "sites", "classes": ["a", "b"]}}, "held_out must be above 0"),
        ({"data": {"name": "digits", "classes": ["a", "b"], "pooled": True, "held_out": 0.1}}, "do not go with"),
        ({"data": {"name": "sites", "classes": ["a", "a"], "held_out": 0.2}}, "different names"),
        ({"data": {"name": "digits", "mean": [0.1], "std": []}}, "one number per channel"),
        ({"deadline": 0}, "deadline must be"),
        ({"quorum": 1.5}, "quorum must be"),
    ],
)
def test_experiments_on_sites_are_told_what_is_missing(change: dict[str, object], message: str) -> None:
    experiment_from_mapping(SITES)
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping(SITES | change)


def test_this_machine_cannot_run_what_only_sites_have() -> None:
    from spherefed.assembly import assemble

    experiment = experiment_from_mapping(SITES)
    with pytest.raises(ConfigError, match="spherefed deploy run"):
        assemble(experiment)
    with pytest.raises(ConfigError, match="spherefed deploy run"):
        assemble(replace(experiment, data=replace(experiment.data, name="digits", classes=tuple("0123456789"))))
