"""A finished run on other data: classes and columns are matched by name, and images normalized as in training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid
from spherefed.errors import DataError
from spherefed.experiment import Data, Experiment, Model
from spherefed.nn.encoders import Mlp
from spherefed.runs.loading import evaluate_run
from spherefed.runs.runner import run_to_end

CLASSES = ("benign", "malignant", "normal")
FEATURES = ("age", "dose", "size", "weight")


def write_table(path: Path, columns: Sequence[str] = FEATURES, classes: Sequence[str] = CLASSES) -> Path:
    """Rows whose class is that of their largest feature, which only the right order of columns tells."""
    rng = np.random.default_rng(0)
    lines = [",".join((*columns, "label"))]
    for row in range(300):
        values = dict(zip(FEATURES, rng.normal(0, 0.3, len(FEATURES)), strict=True))
        label = CLASSES[row % 3]
        values[FEATURES[row % 3]] += 3
        if label in classes:
            lines.append(",".join((*(f"{values[name]:.4f}" for name in columns), label)))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def trained(name: str, out: Path, encoder: Mlp, label_column: str | None = None) -> Path:
    experiment = Experiment(
        name="other-data",
        rounds=2,
        local=LocalTraining(lr=0.1, epochs=5),
        data=Data(name=name, label_column=label_column),
        partition=Iid(clients=2),
        model=Model(encoder=encoder),
    )
    run_to_end(experiment, out)
    return out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(f"table:{write_table(tmp_path / 'train.csv')}", tmp_path / "run", Mlp(widths=(16,)), "label")


def test_classes_are_matched_by_name(run: Path, tmp_path: Path) -> None:
    two = write_table(tmp_path / "two.csv", classes=CLASSES[1:])
    assert evaluate_run(run, f"table:{two}").accuracy > 0.95
    assert evaluate_run(run, f"table:{write_table(tmp_path / 'one.csv', classes=CLASSES[2:])}").accuracy > 0.95
    other = two.with_name("other.csv")
    other.write_text(two.read_text(encoding="utf-8").replace("normal", "norm"), encoding="utf-8")
    with pytest.raises(DataError, match=r"a class 'norm' that is not in the classes of .*run; did you mean 'normal'"):
        evaluate_run(run, f"table:{other}")


def test_columns_are_matched_by_name(run: Path, tmp_path: Path) -> None:
    reversed_columns = write_table(tmp_path / "reversed.csv", columns=FEATURES[::-1])
    assert evaluate_run(run, f"table:{reversed_columns}").accuracy > 0.95
    fewer = write_table(tmp_path / "fewer.csv", columns=FEATURES[:3])
    with pytest.raises(
        DataError, match=r"has the columns age, dose, size, and .* was trained on age, dose, size, weight"
    ):
        evaluate_run(run, f"table:{fewer}")


def test_the_label_column_of_a_table_is_not_asked_of_arrays(run: Path, tmp_path: Path) -> None:
    features = np.eye(3, 4, dtype=np.float32).repeat(5, axis=0) * 3
    labels = np.array(CLASSES).repeat(5)
    np.savez(tmp_path / "data.npz", images=features, labels=labels, test_images=features, test_labels=labels)
    assert evaluate_run(run, f"arrays:{tmp_path / 'data.npz'}").accuracy == 1.0


def write_images(folder: Path, brightness: int) -> Path:
    """Training images of this brightness, and the same test images for every brightness."""
    rng = np.random.default_rng(0)
    for part, offset in (("train", brightness), ("test", 0)):
        for label in range(2):
            (folder / part / f"class{label}").mkdir(parents=True)
            for index in range(12):
                noise = rng.integers(0, 90, (8, 8, 3))
                pixels = (noise + 25 * label + offset).astype(np.uint8)
                Image.fromarray(pixels).save(folder / part / f"class{label}" / f"{index}.png")
    return folder


def test_images_are_normalized_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPHEREFED_DATA", str(tmp_path / "root"))
    dark, bright = write_images(tmp_path / "dark", 0), write_images(tmp_path / "bright", 100)
    run = trained(f"folder:{dark}", tmp_path / "run", Mlp(widths=(8,)))
    assert evaluate_run(run, f"folder:{bright}") == evaluate_run(run, f"folder:{dark}")
