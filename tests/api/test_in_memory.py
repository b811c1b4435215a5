"""Data and encoders that the caller has in memory."""

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import spherefed as sf
from spherefed.data.in_memory import clients_in_memory, dataset_in_memory
from spherefed.nn.encoders import structure_digest
from spherefed.runs.directory import RunDirectory
from spherefed.tensors import digest


def blobs(size: int = 200, dim: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three Gaussian blobs."""
    rng = np.random.default_rng(seed)
    labels = np.arange(size) % 3
    centres = np.random.default_rng(9).normal(scale=4, size=(3, dim))
    return (centres[labels] + rng.normal(size=(size, dim))).astype(np.float32), labels


def experiment(**changes: Any) -> sf.Experiment:
    usual: dict[str, Any] = {"rounds": 3, "local": {"epochs": 3}, "partition": {"alpha": 1.0, "clients": 4}}
    return sf.recipe("digits", **usual | changes)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh())


class Rows(torch.utils.data.Dataset[Any]):
    """A map-style data set of (input, label)."""

    def __init__(self, x: np.ndarray, y: np.ndarray, *, as_dict: bool = False) -> None:
        self.x, self.y, self.as_dict = torch.from_numpy(x), y, as_dict

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        label = int(self.y[index])
        return {"pixels": self.x[index], "digit": label} if self.as_dict else (self.x[index], label)


class Stream(IterableDataset[tuple[np.ndarray, int]]):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        return zip(self.x, self.y.tolist(), strict=True)


class HuggingFace:
    """The attributes of a Hugging Face dataset that are used."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._columns = {"image": list(x), "label": list(y)}
        self.features = {"image": None, "label": type("ClassLabel", (), {"names": ["a", "b", "c"]})()}

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def forms() -> dict[str, tuple[Any, dict[str, str]]]:
    x, y = blobs()
    batches = [(torch.from_numpy(x[i : i + 64]), torch.from_numpy(y[i : i + 64])) for i in range(0, len(y), 64)]
    return {
        "arrays": ((x, y), {}),
        "float64": ((x.astype(np.float64), y.astype(np.uint8)), {}),
        "tensors": ((torch.from_numpy(x), torch.from_numpy(y)), {}),
        "lists": ((x.tolist(), y.tolist()), {}),
        "torch Dataset": (Rows(x, y), {}),
        "torch Dataset of dicts": (Rows(x, y, as_dict=True), {"image_key": "pixels", "label_key": "digit"}),
        "Hugging Face": (HuggingFace(x, y), {}),
        "dict": ({"image": x, "label": y}, {}),
        "dict with other keys": ({"features": x, "kind": y}, {"image_key": "features", "label_key": "kind"}),
        "batches": (batches, {}),
        "DataLoader": (iter(batches), {}),
        "list of examples": (list(zip(x, y, strict=True)), {}),
        "IterableDataset": (Stream(x, y), {}),
        "dict batches": ([{"image": a, "label": b} for a, b in batches], {}),
    }


@pytest.mark.parametrize("form", forms())
def test_every_form_of_the_same_data_gives_the_same_data_set(form: str) -> None:
    data, keys = forms()[form]
    made, usual = dataset_in_memory(data, **keys), dataset_in_memory(blobs())
    assert digest({"x": made.train.inputs, "y": made.train.labels}) == digest(
        {"x": usual.train.inputs, "y": usual.train.labels}
    )
    assert (len(made.train), len(made.test)) == (160, 40)


def test_a_pandas_frame_is_a_data_set() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = blobs()
    frame = pandas.DataFrame(x).assign(hospital=[["north", "south", "west"][label] for label in y])
    made = dataset_in_memory(frame, label_key="hospital")
    assert made.classes == ("north", "south", "west")
    assert torch.equal(made.train.inputs, dataset_in_memory((x, y)).train.inputs)
    assert sf.run(experiment(), data=frame, label_key="hospital", encoder=net(), progress=False).accuracy > 0.9


def test_a_real_hugging_face_dataset_is_a_data_set() -> None:
    datasets = pytest.importorskip("datasets")
    x, y = blobs()
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"image": x.tolist(), "label": y.tolist()})
    # With a fingerprint of its own, the library does not pickle the table to compute one.
    made = dataset_in_memory(datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="blobs"))
    assert torch.allclose(made.train.inputs, dataset_in_memory((x, y)).train.inputs)


def test_a_dict_of_a_training_and_a_test_set_is_used_as_it_is() -> None:
    x, y = blobs()
    splits = {"train": HuggingFace(x[:150], y[:150]), "test": HuggingFace(x[150:], y[150:])}
    made = dataset_in_memory(splits)
    assert (len(made.train), len(made.test), made.classes) == (150, 50, ("a", "b", "c"))
    assert torch.equal(made.test.inputs, torch.from_numpy(x[150:]))


def test_images_in_bytes_become_channels_first_in_0_to_1() -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(10, 5, 7, 3), dtype=np.uint8)
    made = dataset_in_memory((images, [0, 1] * 5), test=(images, [0, 1] * 5))
    assert made.input_shape == (3, 5, 7)
    assert torch.equal(made.test.inputs[4, 2], torch.from_numpy(images[4, :, :, 2].astype(np.float32) / 255))
    assert dataset_in_memory((images[..., 0], [0, 1] * 5)).input_shape == (1, 5, 7)


def test_token_ids_stay_whole_numbers_and_train_an_embedding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    tokens = rng.integers(0, 10, size=(200, 6)) + 10 * labels[:, None]
    encoder = nn.Sequential(nn.EmbeddingBag(20, 8))
    result = sf.run(
        experiment(local={"lr": 0.5}), data=(tokens, labels), encoder=encoder, out=tmp_path / "r", progress=False
    )
    assert json.loads((tmp_path / "r" / "dataset.json").read_text())["input_dtype"] == "int64"
    assert result.accuracy > 0.9
    assert result.model(torch.zeros(1, 6, dtype=torch.int64)).shape == (1, 2)


def test_text_labels_and_an_explicit_test_set() -> None:
    x, y = blobs()
    names = np.array(["cat", "dog", "eel"])
    made = dataset_in_memory((x, names[y]), test=(x[:20], list(names[y[:20]])))
    assert made.classes == ("cat", "dog", "eel")
    assert (len(made.train), len(made.test)) == (200, 20)
    assert made.train.labels.tolist() == y.tolist()


def test_a_test_set_beside_a_data_set_that_has_one_is_refused() -> None:
    made = dataset_in_memory(blobs())
    with pytest.raises(sf.DataError, match=r"a Dataset, which has a test part of 40 examples; leave test= out"):
        sf.run(experiment(), data=made, test=blobs(), encoder=net(), progress=False)


def test_natural_clients_keep_their_own_data() -> None:
    parts = [blobs(60, seed=1), blobs(30, seed=2), blobs(90, seed=3)]
    data, partition = clients_in_memory(parts, test=blobs(40, seed=4))
    assert partition.sizes.tolist() == [60, 30, 90]
    for (x, y), indices in zip(parts, partition.parts, strict=True):
        assert torch.equal(data.train.take(indices).all_labels(), torch.from_numpy(y))
        assert torch.equal(data.train.inputs[indices], torch.from_numpy(x))


class Folder(Rows):
    """As torchvision's ImageFolder: numbers from 0, names in `classes`."""

    def __init__(self, classes: list[str], y: list[int]) -> None:
        super().__init__(np.arange(len(y), dtype=np.float32)[:, None], np.array(y))
        self.classes = classes


def test_classes_of_several_parts_are_matched_by_name() -> None:
    clients = [Folder(["cat", "dog"], [0, 1, 1]), Folder(["dog", "horse"], [0, 1, 1])]
    made, parts = clients_in_memory(clients, test=Folder(["cat", "horse"], [0, 1]))
    assert made.classes == ("cat", "dog", "horse")
    assert parts.label_counts.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert [made.classes[label] for label in made.test.labels] == ["cat", "horse"]
    tested = dataset_in_memory(Folder(["b", "a"], [0, 1]), test=Folder(["a", "b"], [0, 1]))
    assert (tested.classes, tested.test.labels.tolist()) == (("b", "a"), [1, 0])


def test_parts_with_one_list_of_classes_keep_their_numbers() -> None:
    made = dataset_in_memory(Folder(["b", "a", "c"], [0, 1]), test=Folder(["b", "a", "c"], [1, 1]))
    assert (made.classes, made.train.labels.tolist(), made.test.labels.tolist()) == (("b", "a", "c"), [0, 1], [1, 1])
    beside_numbers = dataset_in_memory(Folder(["b", "a", "c"], [0, 1]), test=(np.zeros((2, 1)), [2, 1]))
    assert (beside_numbers.classes, beside_numbers.test.labels.tolist()) == (("b", "a", "c"), [2, 1])


def test_parts_whose_labels_do_not_mean_the_same_are_refused() -> None:
    named, other = Folder(["cat", "dog"], [0, 1]), Folder(["dog", "cat"], [0, 1])
    numbers, texts = (np.zeros((2, 1)), [0, 1]), (np.zeros((2, 1)), ["1", "0"])
    with pytest.raises(sf.DataError, match=r"differently \(cat, dog; dog, cat\), and test does not name its classes"):
        clients_in_memory([named, other], test=numbers)
    with pytest.raises(
        sf.DataError,
        match=r"clients\[1\], whose labels number its own classes dog, cat: labels must be in 0\.\.1, got 0\.\.2",
    ):
        clients_in_memory([named, Folder(["dog", "cat"], [0, 2])])
    with pytest.raises(sf.DataError, match=r"data: two classes have one name, and classes are matched by name"):
        dataset_in_memory(Folder(["crane", "x", "crane"], [0, 1, 2]), test=Folder(["crane", "x"], [0, 1]))
    for parts in ((texts, numbers), (numbers, texts), (named, texts)):
        with pytest.raises(sf.DataError, match=r"some parts have texts, such as '1', and others numbers, such as 0"):
            dataset_in_memory(parts[0], test=parts[1])
    nobody = (np.zeros((0, 1)), [])
    assert clients_in_memory([texts, nobody], test=texts)[0].classes == ("0", "1")  # no label is no number
    nobody = (np.zeros((0, 1)), np.array([], dtype=object))
    assert clients_in_memory([nobody, numbers], test=numbers)[0].classes == ("0", "1")  # and no text


def test_columns_of_several_frames_are_matched_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [30.0, 40.0], "dose": [1.0, 2.0], "label": [0, 1]})
    other = frame[["dose", "label", "age"]]
    expected = [[30.0, 1.0], [40.0, 2.0]]
    made, _ = clients_in_memory([frame, other], test=other)
    assert made.train.inputs.tolist() == expected * 2
    assert made.test.inputs.tolist() == expected
    assert dataset_in_memory(frame, test=other).test.inputs.tolist() == expected
    assert dataset_in_memory(frame, test=frame).name == dataset_in_memory(frame, test=other).name
    renamed = frame.rename(columns={"dose": "weight"})
    with pytest.raises(sf.DataError, match=r"test has a column 'weight', and data has not; every part needs the same"):
        dataset_in_memory(frame, test=renamed)
    numbered = frame.rename(columns={"dose": 0})
    with pytest.raises(sf.DataError, match=r"test has \['age', '0'\], data \['age', 0\]"):
        dataset_in_memory(numbered, test=frame.rename(columns={"dose": "0"}))
    with pytest.raises(sf.DataError, match=r"clients\[0\] has a column 'dose', and clients\[1\] has not"):
        clients_in_memory([frame, frame.drop(columns="dose")])
    twice = pandas.DataFrame([[1.0, 2.0, 3.0, 0]] * 2, columns=["age", "dose", "age", "label"])
    with pytest.raises(sf.DataError, match="test: two columns have one name"):
        dataset_in_memory(frame, test=twice)


def test_natural_clients_train_without_a_partition(tmp_path: Path) -> None:
    parts = [blobs(60, seed=1), blobs(30, seed=2), blobs(90, seed=3)]
    result = sf.run(experiment(), clients=parts, encoder=net(), out=tmp_path / "run", progress=False)
    assert result.experiment.partition.clients == 3
    assert result.accuracy > 0.9
    assert sum(record["clients"] for record in result.records()) == 9
    assert sf.run(experiment(), clients=iter(parts), encoder=net(), progress=False).accuracy == result.accuracy
    other = sf.run(experiment(), clients=parts[::-1], encoder=net(), progress=False)
    assert other.experiment.data.name != result.experiment.data.name
    with pytest.raises(sf.ConfigError, match="validation does not go with one data set per client"):
        sf.tune(experiment(), ["fedavg"], {"local.lr": [0.1, 0.2, 0.3]}, clients=parts, encoder=net(), seeds=1)


def test_a_module_is_copied_and_its_weights_serve_every_seed(tmp_path: Path) -> None:
    encoder = net()
    before = digest(encoder.state_dict())
    results = [
        sf.run(experiment(seed=s), data=blobs(), encoder=encoder, out=tmp_path / str(s), progress=False) for s in (0, 1)
    ]
    assert digest(encoder.state_dict()) == before
    for result in results:
        plain = json.loads((result.path / "experiment.json").read_text())["model"]["encoder"]
        assert plain == {"kind": "in-memory", "sha256": before, "module": "Sequential"}
    assert results[0].summary["weights_sha256"] != results[1].summary["weights_sha256"]


def test_load_resume_and_ray_need_the_module_again(tmp_path: Path) -> None:
    steps = sf.iter_rounds(experiment(), data=blobs(), encoder=net(), out=tmp_path / "run")
    next(steps)
    steps.close()
    for inputs in ({"data": blobs()}, {"encoder": net()}, {"data": blobs(seed=5), "encoder": net()}):
        with pytest.raises(sf.SpherefedError):
            sf.run(experiment(), out=tmp_path / "run", resume=True, progress=False, **inputs)
    result = sf.run(experiment(), out=tmp_path / "run", resume=True, data=blobs(), encoder=net(), progress=False)
    whole = sf.run(experiment(), data=blobs(), encoder=net(), progress=False)
    assert result.summary["weights_sha256"] == whole.summary["weights_sha256"]
    with pytest.raises(sf.ModelError, match="pass encoder= again"):
        sf.load(tmp_path / "run")
    x = torch.from_numpy(blobs()[0][:5])
    assert torch.equal(sf.load(tmp_path / "run", encoder=net())(x), result.model(x))
    with pytest.raises(sf.ConfigError, match="cannot be sent to a Ray cluster"):
        sf.run(experiment(), data=blobs(), encoder=net(), engine=sf.Engine(kind="ray"), progress=False)


def partly_frozen(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16).requires_grad_(False), nn.Tanh(), nn.Linear(16, 16))


def test_a_module_with_other_frozen_layers_than_in_the_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = sf.iter_rounds(experiment(), data=blobs(), encoder=partly_frozen(0), out=tmp_path / "run")
    next(steps)
    steps.close()
    inputs: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "data": blobs(), "progress": False}
    with pytest.raises(sf.RunError, match=r"differences .*model\.encoder\.sha256"):
        sf.run(experiment(), encoder=partly_frozen(1), **inputs)
    result = sf.run(experiment(), encoder=partly_frozen(0), **inputs)
    trained = partly_frozen(0)
    with torch.no_grad():
        trained[2].weight.mul_(2)  # is replaced by the run's
    x = torch.from_numpy(blobs()[0][:5])
    assert torch.equal(sf.load(tmp_path / "run", encoder=trained)(x), result.model(x))
    with pytest.raises(sf.RunError, match="give the module as it was run with"):
        sf.load(tmp_path / "run", encoder=partly_frozen(1))
    monkeypatch.setattr(RunDirectory, "result", lambda _: {**result.summary, "frozen_sha256": None})
    sf.load(tmp_path / "run", encoder=partly_frozen(1))  # of a run by an older release: not known to be wrong


class Shuffled(nn.Module):
    """Columns in an order of its own, and a counter that training moves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 16)
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("order", order)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x[:, self.order]).tanh()


def test_a_module_with_other_integer_buffers_than_in_the_run_is_refused(tmp_path: Path) -> None:
    result = sf.run(experiment(), out=tmp_path / "run", data=blobs(), encoder=Shuffled(0), progress=False)
    x = torch.from_numpy(blobs()[0][:5])
    assert torch.equal(sf.load(tmp_path / "run", encoder=Shuffled(0))(x), result.model(x))
    with pytest.raises(sf.RunError, match="integer buffers, have other values"):
        sf.load(tmp_path / "run", encoder=Shuffled(1))


def test_a_module_with_the_weights_of_the_run_and_other_layers_is_refused(tmp_path: Path) -> None:
    steps = sf.iter_rounds(experiment(), data=blobs(), encoder=net(), out=tmp_path / "run")
    next(steps)
    steps.close()
    other = nn.Sequential(net()[0], nn.ReLU())
    inputs: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "data": blobs(), "progress": False}
    with pytest.raises(sf.RunError, match="other layers than the module of the run"):
        sf.run(experiment(), encoder=other, **inputs)
    sf.run(experiment(), encoder=net(), **inputs)
    with pytest.raises(sf.RunError, match="other layers than the module of the run"):
        sf.load(tmp_path / "run", encoder=other)


@pytest.mark.parametrize("unknown", [{"encoder_structure": None}, {"torch": "1.0"}], ids=["old run", "other torch"])
def test_layers_are_not_compared_where_the_run_does_not_record_them_as_this_torch_prints_them(
    unknown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sf.run(experiment(), data=blobs(), encoder=net(), out=tmp_path / "run", progress=False)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    monkeypatch.setattr(RunDirectory, "_environment", lambda _: environment | unknown)
    sf.load(tmp_path / "run", encoder=nn.Sequential(net()[0], nn.ReLU()))


def test_the_digest_of_layers_has_no_addresses_in_it() -> None:
    class Bent(nn.Module):
        def extra_repr(self) -> str:
            return f"bend={object()}"

    assert structure_digest(Bent()) == structure_digest(Bent())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_workers_give_the_bits_of_one_process() -> None:
    class Local(nn.Module):
        """A class that no other process can import."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x))

    encoder = Local()
    alone, forked = (
        sf.run(experiment(), data=blobs(), encoder=encoder, engine=sf.Engine(workers=w), progress=False) for w in (0, 2)
    )
    assert alone.summary["weights_sha256"] == forked.summary["weights_sha256"]


MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "not data": (3, {}, "data is a int; allowed are"),
    "lengths": (([[1.0], [2.0]], [0]), {}, "2 inputs but 1 labels"),
    "one example": (([[1.0]], [0]), {}, "too few"),
    "label shape": (([[1.0], [2.0]], [[0], [1]]), {}, "one-dimensional"),
    "negative label": (([[1.0], [2.0]], [0, -1]), {}, "number the classes from 0"),
    "fractional label": (([[1.0], [2.0]], [0.5, 1.0]), {}, "texts or whole numbers"),
    "text inputs": ((np.array([["a"], ["b"]]), [0, 1]), {}, "inputs must be numbers"),
    "unequal shapes": (([np.zeros(2), np.zeros(3)], [0, 1]), {}, "equal shapes"),
    "unequal batches": (
        [(np.zeros((2, 3)), [0, 1]), (np.zeros((2, 4)), [0, 1])],
        {},
        r"one shape and labels \(b,\): .*pad",
    ),
    "an example among batches": ([(np.zeros((2, 3)), [0, 1]), (np.zeros(3), 0)], {}, r"labels \(b,\): "),
    "no column": ({"image": [[1.0]], "digit": [0]}, {}, "no column 'label'"),
    "wrong key": (
        {"image": [[1.0]], "label": [0]},
        {"label_key": "lable"},
        "no column 'lable'; name one of the columns image, label",
    ),
    "not a number": (([[float("nan")], [2.0], [3.0]], [0, 1, 0]), {}, "NaN or infinity"),
    "unknown test label": ((np.zeros((4, 2)), [0, 1] * 2), {"test": (np.zeros((2, 3)), [0, 1])}, "same shape"),
}


@pytest.mark.parametrize(("data", "keys", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_data_is_named(data: Any, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(sf.DataError, match=words):
        dataset_in_memory(data, **keys)


def test_objects_that_are_whole_numbers_are_class_numbers() -> None:
    for labels in ([2, 0, 1], [2.0, 0, np.int64(1)], [True, False, True]):
        given = np.array(labels, dtype=object)
        made = dataset_in_memory((np.zeros((3, 2)), given), (np.zeros((3, 2)), given))
        assert made.train.labels.tolist() == [int(label) for label in labels]
    for labels, word in (
        ([0, 1, None], "got None"),
        ([0, 1.5, 2], r"got float64 such as 0\.0"),
        ([0, "a", 1], "got 0"),
    ):
        with pytest.raises(sf.DataError, match=word):
            dataset_in_memory((np.zeros((3, 2)), np.array(labels, dtype=object)))


def test_a_frame_may_mix_types_of_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    plain = np.array([[1.5, 1, 3, 0], [2.5, 0, 4, 1], [3.5, 1, 5, 1]])
    frame = pandas.DataFrame(plain, columns=list("abcd")).astype({"b": bool, "c": "Int64", "d": "boolean"})
    frame["e"] = pandas.Series([True, 2, 3.5], dtype=object)
    test = frame.assign(label=[0, 1, 0])
    made = dataset_in_memory(test, test)
    assert torch.equal(made.train.inputs, torch.tensor(np.c_[plain, [1, 2, 3.5]]).float())
    tokens = pandas.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "label": [0, 1, 0]})
    assert dataset_in_memory(tokens, tokens).train.inputs.dtype == torch.int64  # as before: token ids


@pytest.mark.parametrize("kind", ["float64", "Int64", "boolean", "object"])
def test_a_missing_value_and_a_text_in_a_frame_are_named_with_the_column(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [30.5, 40.5, 50.5], "label": [0, 1, 0], "smokes": [True, False, True]})
    lacking = frame.assign(dose=pandas.Series([1, 0, None], dtype=kind))
    with pytest.raises(sf.DataError, match=r"data: column 'dose' has no value in row 2 \(1 such rows\); fill them in"):
        dataset_in_memory(lacking)
    with pytest.raises(sf.DataError, match=r"and column 'ward' is .*such as 'a'; encode text columns"):
        dataset_in_memory(frame.assign(ward=["a", "b", "c"]))


def test_an_encoder_for_other_inputs_says_so() -> None:
    with pytest.raises(sf.ModelError, match=r"cannot read inputs of \(6,\), float32"):
        sf.run(experiment(), data=blobs(), encoder=nn.Linear(5, 4), progress=False)
    with pytest.raises(sf.ModelError, match=r"inputs of \(6,\), int64: .*if they are features or pixels, give floats"):
        sf.run(experiment(), data=(np.ones((20, 6), dtype=int), [0, 1] * 10), encoder=nn.Linear(6, 4), progress=False)


class NanIn(nn.Module):
    """Features that are NaN in these modes: in training mode, in eval mode, or both."""

    def __init__(self, *modes: bool) -> None:
        super().__init__()
        self.layer, self.modes = nn.Linear(6, 16), modes

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(inputs)
        return features * float("nan") if self.training in self.modes else features


@pytest.mark.parametrize("method", ["fedavg", "fedavg+spherefed"])
@pytest.mark.filterwarnings("ignore:not tuned")
def test_an_encoder_whose_features_are_nan_ends_the_first_round_with_the_cause(method: str) -> None:
    with pytest.raises(sf.FederationError, match=r"^round 0: .*client 3: loss is nan.*check that encoder and loss are"):
        sf.run(experiment(method=method), data=blobs(), encoder=NanIn(True, False), progress=False)


def test_an_encoder_whose_features_are_nan_in_eval_mode_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    sf.run(experiment(), data=blobs(), encoder=net(), progress=False)
    assert "NaN" not in caplog.text
    sf.run(experiment(), data=blobs(), encoder=NanIn(False), progress=False)
    assert "scores are NaN for 40 of 40 test examples, so its accuracy means nothing: check that the en" in caplog.text
    ffc = experiment(method="fedavg+ffc")
    with pytest.raises(sf.FederationError, match=r"^calibration: no client .*features of example 0 .* are not finite"):
        sf.run(ffc, data=blobs(), encoder=NanIn(False), progress=False)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((8, 8), r"images of one channel, give them as \(n, 1, 8, 8\)"),
        ((8, 8, 3), r"channels first: \(n, 3, 8, 8\)"),
    ],
)
def test_floats_that_look_like_images_get_the_shape_of_images_in_the_message(
    shape: tuple[int, ...], words: str
) -> None:
    channels = shape[2] if len(shape) == 3 else 1
    net = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 16))
    images = np.zeros((20, *shape), dtype=np.float32)
    with pytest.raises(sf.ModelError, match=words):
        sf.run(experiment(), data=(images, [0, 1] * 10), encoder=net, progress=False)


def test_greyscale_images_without_channels_are_refused_before_training_also_if_layers_accept_one_of_them() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(sf.ModelError, match=r"images of one channel, give them as \(n, 1, 8, 8\)"):
        sf.run(experiment(), data=(np.zeros((20, 8, 8), dtype=np.float32), [0, 1] * 10), encoder=net, progress=False)


def test_the_row_of_a_nan_is_one_of_the_callers_rows() -> None:
    features, labels = blobs(50)
    for row in (0, 7, 49):  # some of them belong to the test part
        broken = features.copy()
        broken[row, 2] = np.nan
        with pytest.raises(sf.DataError, match=rf"data: input {row} \(counted from 0\) contains NaN"):
            dataset_in_memory((broken, labels))
        with pytest.raises(sf.DataError, match=rf"clients\[1\]: input {row} \(counted from 0\)"):
            clients_in_memory([(features, labels), (broken, labels)])
    with pytest.raises(sf.DataError, match=r"test: input 49 "):
        dataset_in_memory((features, labels), (broken, labels))


SCRIPT = """
import numpy as np
import spherefed as sf
from torch import nn

rng = np.random.default_rng(0)
y = rng.integers(0, 4, size=400)
X = rng.normal(size=(400, 12)) + 3.0 * np.eye(4, 12)[y]
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
experiment = sf.recipe("digits", rounds=8, local={"epochs": 2})
table = sf.compare(experiment, ["fedavg", "fedavg+spherefed"], seeds=2, tuned=TUNED, data=(X, y), encoder=net)
FRAME
table.plot().savefig("curves.png")
"""


@pytest.mark.slow
def test_twelve_lines_compare_methods_on_an_own_net_and_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = '{"fedavg": {"local.lr": 0.1}, "fedavg+spherefed": {"local.lr": 1.0}}'
    has_pandas = find_spec("pandas") is not None
    script = SCRIPT.replace("TUNED", tuned).replace("FRAME", "frame = table.frame()" if has_pandas else "frame = None")
    assert len(script.strip().splitlines()) <= 12
    names: dict[str, Any] = {}
    exec(script, names)  # our own script
    assert min(names["table"].accuracy.values()) > 0.7
    assert not has_pandas or list(names["frame"]["seed"]) == [0, 1, 0, 1]
    assert (tmp_path / "curves.png").stat().st_size > 1000
