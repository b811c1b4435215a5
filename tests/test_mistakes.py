"""Typical mistakes: each gives one line that says what was given, what is allowed and what to do, and no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import spherefed as sf
from support.command_line import spherefed

NET = """
from dataclasses import dataclass
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(3, width)
    def forward(self, x):
        return self.layer(x)

@dataclass
class Thawed:
    def factor(self, round_index, rounds):
        return 1.0

VALUE = 3
"""

PARTS = """
from dataclasses import dataclass
import numpy as np
from torch import nn

@dataclass(frozen=True)
class VectorLoss:
    def __call__(self, scores, labels):
        return nn.functional.cross_entropy(scores, labels, reduction="none")

@dataclass(frozen=True)
class NoLoss:
    def __call__(self, scores, labels):
        pass

@dataclass(frozen=True)
class Losing:
    clients: int = 2
    def split(self, labels, num_classes, rng):
        return [np.arange(3), np.arange(4, 8)]

@dataclass(frozen=True)
class Texts(Losing):
    def split(self, labels, num_classes, rng):
        return "ab"

@dataclass(frozen=True)
class TextSchedule:
    def factor(self, round_index, rounds):
        return "slow"

@dataclass(frozen=True)
class FailingServer:
    def step(self, delta, state):
        return state["momentum"]

@dataclass(frozen=True)
class ShortServer:
    def step(self, delta, state):
        return {name: value[:1] for name, value in delta.items()}, state

@dataclass(frozen=True)
class OneServer:
    def step(self, delta, state):
        return delta

class Pair(nn.Module):
    def forward(self, x):
        return x.flatten(1), 0

def nothing():
    return None

def with_path(path):
    return None

def missing():
    raise FileNotFoundError("scans.zarr")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with one mistake each."""
    root = tmp_path_factory.mktemp("mistakes")
    x, y = np.zeros((4, 3)), np.arange(4) % 2
    np.savez(root / "no-labels.npz", images=x)
    np.savez(root / "half-labels.npz", images=x, labels=y + 0.5)
    np.savez(root / "nan.npz", images=x * np.nan, labels=y)
    np.savez(root / "lengths.npz", images=x, labels=y[:3])
    np.savez(root / "negative.npz", images=x, labels=y - 1)
    np.savez(root / "rank.npz", images=np.zeros(4), labels=y)
    (root / "damaged.npz").write_bytes(b"not an archive")
    for folder, name, pixels in (
        ("empty-class", "cat/a.png", (8, 8)),
        ("no-image", "cat/a.png", (8, 8)),
        ("sizes", "cat/a.png", (8, 8)),
        ("sizes", "dog/a.png", (7, 8)),
        ("one-class", "cat/a.png", (8, 8)),
    ):
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((*pixels, 3), np.uint8)).save(root / folder / name)
    (root / "empty-class" / "dog").mkdir()
    (root / "no-image" / "dog").mkdir()
    (root / "no-image" / "dog" / "a.png").write_bytes(b"not an image")
    (root / "broken.toml").write_text("rounds = = 3")
    (root / "short.toml").write_text('name = "mine"\n')
    (root / "typo.toml").write_text('name = "mine"\nrounds = 1\nlocal = {lr = 0.1, epoch = 3}\n')
    (root / "nothing").mkdir()
    (root / "mistaken_net.py").write_text(NET)
    (root / "mistaken_parts.py").write_text(PARTS)
    (root / "mistaken_syntax.py").write_text("def loss(:\n")
    (root / "gap.csv").write_text("a,b,label\n1,2,x\n3,,y\n")
    (root / "no-label.csv").write_text("a,b\n1,2\n")
    return root


# Setting → what was given, what is allowed, what to do.
SETTINGS: dict[str, tuple[str, str, str]] = {
    # wrong type
    "local.lr=fast": ("'fast'", "local.lr must be a number", "spherefed fields local"),
    "rounds=ten": ("'ten'", "rounds must be a whole number", "spherefed fields rounds"),
    "rounds=2.5": ("2.5", "rounds must be a whole number", "spherefed fields rounds"),
    "model.normalize=1": ("got 1", "model.normalize must be true or false", "spherefed fields model"),
    "model.encoder.widths=3": ("got 3", "model.encoder.widths must be a list", "spherefed fields model"),
    "data.classes=[cat, dog]": ("'[cat, dog]'", "as in TOML", "texts in quotes"),
    "local.lr": ("'local.lr'", "path=value", "for example --set local.lr=0.1"),
    # out of range
    "local.lr=-1": ("got -1", "local.lr must be a positive number", "spherefed fields local"),
    "local.lr=nan": ("got nan", "local.lr must be a positive number", "spherefed fields local"),
    "rounds=-1": ("got -1", "rounds must be at least 0", "spherefed fields rounds"),
    "rounds=0": ("rounds = 0", "needs model.frozen = true", "an encoder that is to be trained needs rounds"),
    "local.epochs=0": ("got 0", "local.epochs must be at least 1", "spherefed fields local"),
    "local.batch_size=0": ("got 0", "local.batch_size must be at least 1", "spherefed fields local"),
    "local.momentum=1.5": ("got 1.5", "local.momentum must be in [0, 1)", "spherefed fields local"),
    "partition.alpha=0": ("got 0", "partition.alpha must be a positive number", "spherefed fields partition"),
    "partition.clients=0": ("got 0", "partition.clients must be at least 1", "spherefed fields partition"),
    "partition.min_size=1000": ("min_size 1000", "there are 1438", "lower min_size or clients"),
    "cohort=99": ("got 99", "between 1 and", "the number of clients, 10"),
    "data.held_out=-0.1": ("got -0.1", "data.held_out must be in [0, 1)", "spherefed fields data"),
    "data.examples=99999": ("99999", "1438 for training", "lower it or leave it out"),
    "data.resize=20": ("got 20", "8×8 pixels", "at most 8 is possible"),
    "quorum=2": ("got 2", "quorum must be between 0 and 1", "spherefed fields quorum"),
    "seed=-1": ("got -1", "seed must be at least 0", "spherefed fields seed"),
    "name=a/b": ("'a/b'", "a plain word for a folder", "for example 'mine'"),
    # misspelt
    "lcoal.lr=0.1": ("'lcoal'", "allowed: name, rounds, local", "did you mean 'local'?"),
    "local.learning_rate=0.1": ("'local.learning_rate'", "allowed: lr, epochs", "unknown key"),
    "model.head.kind=orthonormla": ("'orthonormla'", "allowed: learned", "did you mean 'orthonormal'?"),
    "loss.kind=crossentropy": ("'crossentropy'", "allowed: ce, mse", "package.module:Name of your own"),
    "partition.kind=dirichelt": ("'dirichelt'", "allowed: iid", "did you mean 'dirichlet'?"),
    "schedule.kind=multi-step": ("'multi-step'", "allowed: constant", "did you mean 'multistep'?"),
    "algorithm.server.kind=adamw": ("'adamw'", "allowed: sgd, adam", "did you mean 'adam'?"),
    "algorithm.share=body": ("'body'", "algorithm.share must be one of", "all, encoder, head"),
    "data.name=cifar1000": ("'cifar1000'", "table:FILE.csv", "did you mean 'cifar100'?"),
    # what does not go together
    "calibrate_every=1": ("got 1", "needs a calibration", "set calibration.kind=ffc"),
    "partition.kind=sites": ("'sites'", "needs data.classes", "all class names"),
    "partition.kind=stored": ("partition.path", "is required", "spherefed fields partition"),
    "partition={kind='stored', path='no.json'}": ("no.json", "No such file", "spherefed partition … --export"),
    "partition={kind='by-column', column='ward'}": ("'ward'", "they have no columns", "another partition.kind"),
    "algorithm.correction.kind=feddyn": ("got 0", "prox_mu above 0", "0.01 is usual"),
    "personalization.kind=fine-tune": ("got 0", "data.held_out must be above 0", "0.15 is usual"),
    "model={head='orthonormal', encoder={kind='mlp', widths=[4]}}": (
        "got 4 < 10",
        "dimension >= classes",
        "wider encoder",
    ),
    "model.encoder.kind=efficientnet-lite0": ("1 channels", "is for 3", "np.repeat(images[:, None], 3"),
    # files
    "data.name=arrays:missing.npz": ("no file missing.npz", "'images' and 'labels'", "needs an .npz file"),
    "data.name=arrays:no-labels.npz": ("it has images", "'labels'", "np.savez"),
    "data.name=arrays:half-labels.npz": ("float64", "whole numbers or texts", "allowed are"),
    "data.name=arrays:nan.npz": ("input 0 (counted from 0) contains NaN", "must be finite", "replace or remove"),
    "data.name=arrays:lengths.npz": ("4 inputs but 3 labels", "each input needs one label", "lengths.npz"),
    "data.name=arrays:negative.npz": ("label -1", "outside 0..", "number the classes from 0"),
    "data.name=arrays:rank.npz": ("shape (4,)", "allowed are (n, h, w)", "(n, d)"),
    "data.name=arrays:damaged.npz": ("damaged.npz", "read as .npz", "np.savez"),
    "data.name=folder:missing": ("no folder missing", "needs a folder", "one sub-folder of images per class"),
    "data.name=folder:empty-class": ("dog is empty", "every class", "needs at least one image"),
    "data.name=folder:no-image": ("a.png", "not a readable image", "replace or remove the file"),
    "data.name=folder:sizes": ("7×8", "the others are 8×8", "set data.resize"),
    "data.name=folder:one-class": ("1 class folders", "at least 2", "one sub-folder of images per class"),
    "data.label_column=outcome": ("'digits'", "data.label_column is for tables", "leave it out, or name table:FILE"),
    "data={name='arrays:nan.npz', label_column='y'}": ("'arrays:nan.npz'", "is for tables", "leave it out"),
    "data={name='mistaken_parts:nothing', label_column='y'}": ("'mistaken_parts:nothing'", "is for tables", "leave it"),
    "data.name=table:missing.csv": ("no file missing.csv", ".csv or .parquet", "a folder with train and test files"),
    # own components
    "loss.kind=nowhere:Loss": ("'nowhere:Loss'", "expected a frozen dataclass", "PYTHONPATH"),
    "model.encoder.kind=mistaken_net:Nett": ("'Nett'", "expected", "did you mean 'Net'?"),
    "schedule.kind=mistaken_net:Thawed": ("'mistaken_net:Thawed'", "must be frozen", "@dataclass(frozen=True)"),
    "schedule.kind=mistaken_net:VALUE": ("is a int", "expected a frozen dataclass", "factor(round_index, rounds)"),
    "model={encoder='flatten', head='etf'}": ("nothing is trained", "'flatten'", "head 'etf' is fixed"),
    "model.encoder.kind=mistaken_net:Net": ("(1, 8, 8)", "cannot read inputs", "must accept a batch"),
    "model.encoder={kind='mistaken_net:Net', widht=3}": ("widht", "cannot be built", "it takes width"),
    "loss.kind=mistaken_syntax:loss": ("'mistaken_syntax'", "cannot be imported", "mistaken_syntax.py, line 1"),
    "loss.kind=mistaken_parts:VectorLoss": ("shape (2,)", "a scalar tensor with a gradient", "for example"),
    "loss.kind=mistaken_parts:NoLoss": ("got None", "a scalar tensor with a gradient", "for example"),
    "loss={kind='torch.nn:CrossEntropyLoss', smoothing=0.1}": ("'smoothing'", "fails with TypeError", "mend it"),
    "partition.kind=mistaken_parts:Losing": ("7 different", "each of 1438 examples", "exactly one of 2 clients"),
    "partition.kind=mistaken_parts:Texts": ("'a'", "one array of indices per client", "'mistaken_parts:Texts'"),
    "schedule.kind=mistaken_parts:TextSchedule": ("got 'slow'", "a number that is not negative", "1.0 leaves the rate"),
    "algorithm.server.kind=mistaken_parts:FailingServer": ("KeyError: 'momentum'", "FailingServer", "mend it"),
    "algorithm.server.kind=mistaken_parts:ShortServer": ("(1, 3)", "the names and shapes", "(2, 3)"),
    "algorithm.server.kind=mistaken_parts:OneServer": ("got a dict", "(update, state)", "two dicts of tensors"),
    "model.encoder.kind=mistaken_parts:Pair": ("got a tuple", "one row of features", "the tensor of features alone"),
    "model.encoder.kind=mistaken_parts:nothing": ("NoneType", "expected an nn.Module", "'mistaken_parts:nothing'"),
    "data.name=mistaken_parts:nothing": ("a NoneType", "allowed are (X, y)", "a pandas frame"),
    "data.name=mistaken_parts:with_path": ("'path'", "a function without arguments", "such as (X, y)"),
    "data.name=mistaken_parts:missing": ("scans.zarr", "a function without arguments", "such as (X, y)"),
    "data.name=table:gap.csv": ("input 1 (counted from 0)", "must be finite", "replace or remove"),
    "data.name=table:no-label.csv": ("no column 'label'", "a, b", "name one of the columns"),
}

COMMANDS: dict[str, tuple[str, str, str]] = {
    "run digit": ("'digit'", "allowed: digits", "did you mean 'digits'?"),
    "run nowhere.toml": ("nowhere.toml", "No such file", "give a recipe by name"),
    "run broken.toml": ("broken.toml", "write TOML", "rounds = 10"),
    "run short.toml": ("short.toml", "rounds is required", "spherefed fields rounds"),
    "run typo.toml": ("'local.epoch'", "allowed: lr, epochs", "did you mean 'epochs'?"),
    "run digits --method fedporx": ("'fedporx'", "allowed: fedavg", "did you mean 'fedprox'?"),
    "run digits --method fedavg+spherfed": ("'spherfed'", "allowed: ffc", "did you mean 'spherefed'?"),
    "run digits --method spherefed": ("'spherefed'", "needs a base algorithm", "fedavg+spherefed"),
    "run digits --device cuda:9": ("'cuda:9'", "cannot be used", "try --device cpu"),
    "run digits --device gpu": ("'gpu'", "Expected one of cpu, cuda", "try --device cpu"),
    "run digits --workers two": ("'two'", "integer", "spherefed run --help"),
    "run digits --wrokers 2": ("'--wrokers'", "Did you mean '--workers'?", "spherefed run --help"),
    "run digits --engine spark": ("'spark'", "'local', 'ray'", "spherefed run --help"),
    "run digits --address 10.0.0.1:6379": ("an address", "belongs to the ray engine", "add --engine ray"),
    "run digits --out broken.toml": ("broken.toml", "File exists", "choose another --out"),
    "run digits --out nothing --resume": ("nothing holds no run", "experiment.json", "leave --resume out"),
    "run cifar100 --data-root nothing": (
        "'cifar100' is not in nothing",
        "cifar-100-python",
        "spherefed data get cifar100",
    ),
    "run": ("'EXPERIMENT'", "Missing argument", "spherefed run --help"),
    "rnu digits": ("'rnu'", "Did you mean 'run'?", "spherefed --help"),
    "compare digits --seeds 0": ("0 is not", "x>=1", "spherefed compare --help"),
    "compare digits --with fcc": ("'fcc'", "allowed: ffc", "did you mean 'ffc'?"),
    "compare digits --methods ,": ("got ','", "names no method", "for example --methods"),
    "compare digits --set fedprox:local.lr=0.1": ("'fedprox'", "allowed: fedavg", "in this comparison"),
    "data list --data-root nowhere": ("nowhere is no folder", "holds data sets", "spherefed data get NAME"),
    "run cifar100 --data-root nowhere": ("not in nowhere", "no folder", "data get cifar100 --data-root nowhere"),
    "compare digits --resume": ("--resume", "needs --out", "the folder of the comparison to continue"),
    "compare digits --tuned no.json": ("no.json", "the output of `spherefed tune`", "write it with"),
    "report nothing": ("nothing", "a run directory has experiment.json", "give the folder"),
    "report nothing --metric auc": ("'auc'", "allowed: accuracy, balanced-accuracy", "recall:CLASS"),
    "evaluate nowhere --data digits": ("nowhere", "no such folder", "name a folder that a run has written"),
    "tune digits --grid local.lr=1,2,3 --out broken.toml/t.json": (
        "broken.toml/t",
        "cannot be written",
        "another file",
    ),
    "tune digits --grid local.lr=1,2,3 --out .": ("--out .", "is a folder", "name a file"),
    "tune digits --grid local.lr=a,b": ("'local.lr=a,b'", "path=number,number", "for example local.lr=0.03,0.1,0.3"),
    "fields local.lrr": ("'local.lrr'", "allowed: name", "did you mean 'local.lr'?"),
}

X, Y = np.arange(60.0).reshape(20, 3).astype(np.float32), np.arange(20) % 2


def experiment() -> sf.Experiment:
    return sf.recipe("digits", rounds=1)


def run(**inputs: Any) -> sf.Result:
    return sf.run(experiment(), progress=False, **inputs)


def built(**changes: Any) -> sf.Experiment:
    usual: dict[str, Any] = {"name": "mine", "rounds": 1, "local": sf.LocalTraining(lr=0.1)}
    return sf.Experiment(**usual | changes)


def with_nan(row: int) -> np.ndarray:
    broken = X.copy()
    broken[row, 1] = np.nan
    return broken


class Double(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).double()


def statistics(dim: int, labels: list[int]) -> sf.Statistics:
    model = sf.hyperspherical(nn.Linear(3, dim), num_classes=2, dim=dim)
    return sf.statistics(model, [(torch.ones(2, 3), torch.tensor(labels))])


CALLS: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "data": (lambda: run(data=3), "a int", "allowed are (X, y)", "a pandas frame with a label column"),
    "data lengths": (lambda: run(data=(X, Y[:5])), "20 inputs but 5 labels", "each input needs", "one label"),
    "texts": (lambda: run(data=(np.array([["a"]] * 4), [0, 1, 0, 1])), "<U1", "must be numbers", "encode text columns"),
    "negative labels": (lambda: run(data=(X, Y - 1)), "got -1", "0, 1, 2, …", "number the classes from 0"),
    "half labels": (lambda: run(data=(X, Y + 0.5)), "such as 0.5", "texts or whole numbers", "y.astype(int)"),
    "label matrix": (lambda: run(data=(X, Y[:, None])), "(20, 1)", "one-dimensional", "flatten them"),
    "no examples": (lambda: run(data=(X[:0], Y[:0])), "0 example(s)", "need one each", "give more"),
    "one class": (lambda: run(data=(X, Y * 0)), "only '0'", "at least 2 classes", "add examples of others"),
    "nan": (lambda: run(data=(X * np.nan, Y)), "contains NaN", "must be finite", "replace or remove"),
    "ragged": (lambda: run(data=([[1.0], [1.0, 2.0]], [0, 1])), "[2] at entry 1", "equal shapes", "resize or pad"),
    "label column": (lambda: run(data={"image": X, "digit": Y}), "no column 'label'", "image, digit", "name one"),
    "label column for a file": (
        lambda: sf.run(sf.recipe("digits", data={"label_column": "digit"}), data={"image": X, "digit": Y}),
        "'digit'", "is for table files", "label_key=",
    ),
    "image key": (
        lambda: run(data={"pixels": X, "label": Y}, image_key="pixel"), "'pixel'", "pixels, label", "name one",
    ),
    "test alone": (lambda: run(test=(X, Y)), "test= was given", "without data= or clients=", "leave test= out"),
    "test shape": (lambda: run(data=(X, Y), test=(X[:, :2], Y)), "test inputs (2,)", "(3,)", "the same shape"),
    "no clients": (lambda: run(clients=[]), "got none", "at least one data set", "one data set per client"),
    "client shapes": (lambda: run(clients=[(X, Y), (X[:, :2], Y)]), "(2,), (3,)", "the same shape", "reshape or pad"),
    "data and clients": (lambda: run(data=(X, Y), clients=[(X, Y)]), "got both", "either data=", "or clients="),
    "by column": (
        lambda: sf.run(sf.recipe("digits", partition={"kind": "by-column", "column": "w"}), data=(X, Y)),
        "a tuple", "needs data with columns", "pass a pandas frame",
    ),
    "named encoder": (lambda: run(encoder="resnet18"), "'resnet18'", "must be an nn.Module", "pass an instance"),
    "encoder class": (lambda: run(encoder=nn.Linear), "the class Linear", "must be an nn.Module", "pass an instance"),
    "lazy encoder": (
        lambda: run(data=(X, Y), encoder=nn.LazyLinear(8)), "parameters without a shape", "'weight'", "call it once",
    ),
    "encoder inputs": (
        lambda: run(data=(X, Y), encoder=nn.Linear(5, 4)), "inputs of (3,)", "cannot read", "must accept a batch",
    ),
    "encoder outputs": (
        lambda: run(data=(X, Y), encoder=nn.Unflatten(1, (1, 3))), "(2, 1, 3)", "one row of features", "flatten them",
    ),
    "unknown argument": (lambda: run(dat=(X, Y)), "'dat'", "allowed: data, test", "did you mean 'data'?"),
    "named engine": (lambda: run(engine="ray"), "'ray'", "must be an Engine", "sf.Engine(kind="),
    "unknown engine": (lambda: sf.Engine(kind="spark"), "'spark'", "must be local", "or ray"),  # type: ignore[arg-type]
    "named experiment": (lambda: sf.run("digits"), "'digits'", "must be an Experiment", "sf.recipe('digits')"),  # type: ignore[arg-type]
    "dict": (lambda: sf.run({"rounds": 3}), "a dict", "must be an Experiment", "write sf.recipe"),  # type: ignore[arg-type]
    "recipe": (lambda: sf.recipe("digit"), "'digit'", "allowed: digits", "did you mean 'digits'?"),
    "recipe field": (lambda: sf.recipe("digits", epochs=5), "'epochs'", "allowed: name, rounds", "unknown key"),
    "recipe type": (lambda: sf.recipe("digits", local=5), "got 5", "a table of fields", "spherefed fields local"),
    "one method": (lambda: sf.compare(experiment(), "fedavg"), "'fedavg'", "a list of names", "write ['fedavg']"),
    "no methods": (lambda: sf.compare(experiment(), []), "got 0", "at least one method", "for example methods="),
    "grid of two": (
        lambda: sf.tune(experiment(), ["fedavg"], {"local.lr": [0.1], "local.momentum": [0.9]}),
        "local.lr, local.momentum", "must name one path", "for example",
    ),
    "short grid": (
        lambda: sf.tune(experiment(), ["fedavg"], {"local.lr": [0.1]}), "got 0.1", "at least three", "for example 0.03",
    ),
    "float64 features": (lambda: run(data=(X, Y), encoder=Double()), "got float64", "float32 features", ".float()"),
    "label nan": (lambda: run(data=(X, np.where(Y, 1, np.nan))), "nan at index 0", "texts or", "replace or remove"),
    "label inf": (lambda: run(data=(X, np.where(Y, 1, np.inf))), "inf at index 0", "texts or", "replace or remove"),
    "text label none": (lambda: run(data=(X, ["a", None] * 10)), "got None", "texts or whole", "replace or remove"),
    "mixed labels": (lambda: run(data=(X, [0, "a"] * 10)), "got 0", "texts or whole", "replace or remove"),
    "identifiers": (lambda: run(data=(X, Y * 10**7)), "got 10000000", "below 65,536", "number the classes"),
    "complex": (lambda: run(data=(X + 0j, Y)), "complex64", "must be real", "give an array"),
    "no features": (lambda: run(data=(X[:, :0], Y)), "(20, 0)", "at least one per example", "give an array"),
    "file as data": (lambda: run(data="mine.csv"), "'mine.csv'", "named in the experiment", "table:FILE.csv"),
    "three arrays": (lambda: run(data=(X, Y, Y)), "a ndarray", "must be (input, label)", "write (X, y)"),
    "row of a nan": (lambda: run(data=(with_nan(7), Y)), "input 7 (counted from 0)", "must be finite", "replace"),
    "dict of clients": (lambda: run(clients={"a": (X, Y)}), "a dict", "a list with one data set", "clients.values()"),
    "number of clients": (lambda: run(clients=3), "got 3", "a list with one data set", "write [(X0, y0)"),
    "out": (lambda: run(out=3), "got 3", "the path of a folder", "out='runs/mine'"),
    "seeds": (lambda: sf.compare(experiment(), ["fedavg"], seeds=[0, 1]), "[0, 1]", "a whole number", "seeds=3"),  # type: ignore[arg-type]
    "number as method": (lambda: sf.compare(experiment(), [1]), "got 1", "must be a name", "fedavg+spherefed"),  # type: ignore[list-item]
    "tuned": (lambda: sf.compare(experiment(), ["fedavg"], tuned={"fedavg": 0.1}), "0.1", "by method", "for example"),  # type: ignore[dict-item]
    "grid of one": (lambda: sf.tune(experiment(), ["fedavg"], {"local.lr": 0.1}), "0.1", "a list", "for example"),  # type: ignore[dict-item]
    "grid of texts": (lambda: sf.tune(experiment(), ["fedavg"], {"local.lr": ["a"]}), "'a'", "numbers", "for example"),  # type: ignore[list-item]
    "tune one": (lambda: sf.tune(experiment(), "fedavg"), "'fedavg'", "a list of names", "write ['fedavg']"),
    "text rate": (lambda: sf.LocalTraining(lr="0.1"), "'0.1'", "local.lr must be", "a number"),  # type: ignore[arg-type]
    "half epochs": (lambda: sf.LocalTraining(lr=0.1, epochs=1.5), "1.5", "local.epochs must be", "a whole number"),  # type: ignore[arg-type]
    "one width": (lambda: sf.Mlp(widths=64), "got 64", "a tuple of whole numbers", "write it as (…,)"),  # type: ignore[arg-type]
    "text alpha": (lambda: sf.Dirichlet(alpha="1"), "'1'", "partition.alpha must be", "a number"),  # type: ignore[arg-type]
    "weights": (lambda: sf.Algorithm(weigh="sites"), "'sites'", "must be one of", "examples, clients or None"),  # type: ignore[arg-type]
    "model by name": (lambda: built(model="mlp"), "'mlp'", "model must be", "sf.Model(…)"),
    "loss by name": (lambda: built(loss="ce"), "'ce'", "sf.CrossEntropy(…)", "a frozen dataclass of your own"),
    "loss is no loss": (lambda: built(loss=sf.Mlp()), "Mlp(", "sf.CrossEntropy(…)", "a frozen dataclass of your own"),
    "text rounds": (lambda: built(rounds="3"), "'3'", "rounds must be", "a whole number"),
    "text workers": (lambda: sf.Engine(workers="2"), "'2'", "engine.workers must be", "a whole number"),  # type: ignore[arg-type]
    "numbered recipe": (lambda: sf.recipe(3), "got 3", "a name or a path", "allowed: digits"),  # type: ignore[arg-type]
    "recipe methods": (lambda: sf.recipe("digits", method=["fedavg"]), "['fedavg']", "must be a name", "such as"),  # type: ignore[arg-type]
    "load nothing": (lambda: sf.load(None), "got None", "path of a run directory", "for example"),  # type: ignore[arg-type]
    "class as encoder": (lambda: sf.hyperspherical(nn.Linear, 3), "the class Linear", "an nn.Module", "an instance"),  # type: ignore[arg-type]
    "no classes": (lambda: sf.hyperspherical(nn.Linear(3, 4), 0), "got 0", "at least 2", "count your classes"),
    "float labels": (lambda: sf.sphere_mse(torch.zeros(2, 3), torch.zeros(2)), "float32", "class number", "per row"),
    "label range": (lambda: sf.sphere_mse(torch.zeros(1, 3), torch.tensor([7])), "3 classes", "0..2", "number the"),
    "plain module": (lambda: sf.statistics(nn.Linear(3, 4), []), "a Linear", "sf.hyperspherical", "sf.from_classifier"),  # type: ignore[arg-type]
    "one batch": (
        lambda: sf.statistics(sf.hyperspherical(nn.Linear(3, 4), 2), (torch.ones(2, 3), torch.tensor([0, 1]))),  # type: ignore[arg-type]
        "one pair", "an iterable of (inputs, labels)", "write [(inputs, labels)]",
    ),
    "calibrate": (
        lambda: sf.hyperspherical(nn.Linear(3, 4), 2, 4).calibrate(None),  # type: ignore[arg-type]
        "a NoneType", "the statistics of all clients", "model.calibrate(sum(",
    ),
    "load": (lambda: sf.load("nowhere"), "nowhere", "not a run directory", "name a folder that a run has written"),
    "narrow encoder": (
        lambda: sf.hyperspherical(nn.Linear(3, 4), num_classes=10, dim=4), "got 4 < 10", ">= classes", "wider encoder",
    ),
    "one batch of arrays": (
        lambda: sf.statistics(sf.hyperspherical(nn.Linear(3, 4), 2), (X, Y)),  # type: ignore[arg-type]
        "one pair", "an iterable of (inputs, labels)", "write [(inputs, labels)]",
    ),
    "texts in a batch": (
        lambda: sf.statistics(sf.hyperspherical(nn.Linear(3, 4), 2), [(X, ["a", "b"] * 10)]),  # type: ignore[list-item]
        "a list", "arrays of numbers", "convert it",
    ),
    "text ridge": (lambda: statistics(4, [0, 1]).solve("1"), "'1'", "must be a number", "write for example"),  # type: ignore[arg-type]
    "labels of statistics": (lambda: statistics(4, [0, 5]), "got 0..5", "must lie in 0..1", "number the classes"),
    "other statistics": (
        lambda: statistics(4, [0, 1]) + statistics(8, [0, 1]), "4 features", "do not fit", "the same encoder",
    ),
}  # fmt: skip


def check(line: str, words: tuple[str, str, str]) -> None:
    missing = [word for word in words if word not in line]
    assert not missing, f"{missing} not in: {line}"
    assert "Traceback" not in line


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_mistaken_setting_is_one_line(
    setting: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    code = spherefed(monkeypatch, "run", "digits", "--out", tmp_path / "run", "--set", setting)
    (line,) = capsys.readouterr().err.splitlines()
    assert (code, line.startswith("error: ")) == (2, True)
    check(line, SETTINGS[setting])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_mistaken_command_is_one_line(
    words: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    code = spherefed(monkeypatch, *words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert (code, line.startswith("error: ")) == (2, True)
    check(line, COMMANDS[words])


@pytest.mark.parametrize("call", CALLS)
def test_a_mistaken_call_is_one_line(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, *words = CALLS[call]
    with pytest.raises(sf.SpherefedError) as caught:
        function()
    assert "\n" not in str(caught.value)
    check(str(caught.value), (words[0], words[1], words[2]))
