"""What a hostile server can make of a site with default limits: each row of the table is tried here.

python benchmarks/hostile_server.py           prints the table
python benchmarks/hostile_server.py --write   also writes it into docs/reliability.md, between its markers
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sections import write_section
from sklearn.datasets import load_digits

from spherefed.assembly import assemble
from spherefed.calibration import Ffc, Oracle
from spherefed.calibration.ffc import Statistics
from spherefed.client.handle import handle
from spherefed.client.training import LocalTraining
from spherefed.data.partition import Iid, Sites
from spherefed.deployment.app import MESSAGE_TYPES
from spherefed.deployment.handshake import Handshake, LoadDerived
from spherefed.deployment.limits import SiteLimits
from spherefed.deployment.site import answer
from spherefed.deployment.site_config import Site
from spherefed.deployment.site_data import assemble_site
from spherefed.engines.flower_codec import decode, encode
from spherefed.errors import SpherefedError
from spherefed.experiment import Data, Experiment, Model, experiment_from_mapping
from spherefed.losses import MeanSquaredError
from spherefed.messages import Failure, Measure, MeasureReply, ModelState, Train
from spherefed.nn.encoders import Flatten, Mlp
from spherefed.nn.heads import Orthonormal
from spherefed.schema import to_plain, with_path

CLASSES = tuple(str(digit) for digit in range(10))
RARE, NUM_RARE, NUM_IMAGES = 9, 3, 400


class Victim:
    """A site with 400 images of digits, three of them of the class 9, and the default limits."""

    def __init__(self, folder: Path, **config: Any) -> None:
        digits = load_digits()
        common = np.flatnonzero(digits.target != RARE)[: NUM_IMAGES - NUM_RARE]
        rare = np.flatnonzero(digits.target == RARE)[:NUM_RARE]
        rows = np.concatenate([common, rare])
        np.savez(folder / "own.npz", images=digits.images[rows].astype(np.float32), labels=digits.target[rows])
        values = {"data": f"arrays:{folder / 'own.npz'}", "record": str(folder / "record.json"), **config}
        self.folder, self.site = folder, Site(client=0, client_state=str(folder / "state"), **values)

    def ask(self, message: Any, plain: Any, run: str = "1") -> Any:
        """The reply to this message; an error says why there is none."""
        text = plain if isinstance(plain, str) else json.dumps(plain)
        reply = answer(message, text, run, self.site)
        if isinstance(reply, Failure):
            raise SpherefedError(reply.cause)
        return reply

    def model(self, plain: Any) -> ModelState:
        """The model with which a server of this experiment begins."""
        return assemble_site(experiment_from_mapping(plain), self.site)[0].initial()

    def statistics(self, plain: Any, factor: float = 1.0, run: str = "1") -> Statistics:
        """V and U of this site, for the initial model times a factor."""
        model = self.model(plain)
        scaled = ModelState({name: tensor * factor for name, tensor in model.params.items()}, model.buffers)
        reply = self.ask(Measure(1, scaled), plain, run)
        assert isinstance(reply, MeasureReply)
        return Statistics.from_tensors(reply.moments)


def experiment(**changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "name": "request",
        "rounds": 3,
        "local": LocalTraining(lr=0.1, batch_size=32),
        "data": Data(name="sites", classes=CLASSES, held_out=0.2),
        "partition": Sites(clients=1),
        "model": Model(encoder=Mlp(widths=(32,)), head=Orthonormal(), normalize=True),
        "loss": MeanSquaredError(),
        "calibration": Ffc(),
    }
    return Experiment(**values | changes)


def asking_for(**settings: Any) -> Any:
    """The experiment of a request, as plain data with these settings; `__` in a name stands for a dot."""
    plain = to_plain(experiment())
    for name, value in settings.items():
        plain = with_path(plain, name.replace("__", "."), value)
    return plain


def handshake(**settings: Any) -> Callable[[Victim], str]:
    def ask(victim: Victim) -> str:
        victim.ask(Handshake(), asking_for(**settings))
        return "accepted"

    return ask


def pixels(fraction: float) -> Experiment:
    """One-shot FFC whose features are the pixels, with this hold-out."""
    return experiment(
        rounds=0,
        local=None,
        model=Model(encoder=Flatten(), frozen=True, head=Orthonormal(), normalize=True),
        data=Data(name="sites", classes=CLASSES, held_out=fraction),
    )


def in_a_simulation() -> float:
    """The attack by two hold-outs that differ in one example, on a client that lets the experiment choose them."""
    parts = []
    for fraction in (0.5, 0.501):
        data = Data(name="digits", examples=1000, held_out=fraction)
        assembly = assemble(replace(pixels(fraction), data=data, partition=Iid(clients=1)))
        ((reply, _),) = handle([assembly.clients[0]], Measure(0, assembly.initial()), [None])
        assert isinstance(reply, MeasureReply)
        parts.append((Statistics.from_tensors(reply.moments), assembly.clients[0].examples))
    difference = parts[0][0] - parts[1][0]
    kept = set(parts[1][1].indices.tolist())  # type: ignore[union-attr]
    (lost,) = (row for row in parts[0][1].indices.tolist() if row not in kept)  # type: ignore[union-attr]
    image = parts[0][1].inputs[lost].flatten().double()
    recovered = torch.linalg.eigh(difference.gram()).eigenvectors[:, -1]
    return float(torch.nn.functional.cosine_similarity(image, recovered, dim=0).abs())


def two_hold_outs(victim: Victim) -> str:
    first, second = (
        victim.statistics(to_plain(pixels(fraction)), run=run) for fraction, run in ((0.5, "1"), (0.5025, "2"))
    )
    return f"answers; V₁ − V₂ = {float((first.gram() - second.gram()).abs().max()):g}"


def two_seeds(victim: Victim) -> str:
    first, second = (victim.statistics(to_plain(replace(pixels(0.5), seed=seed)), run=str(seed)) for seed in (1, 2))
    return f"answers; V₁ − V₂ = {float((first.gram() - second.gram()).abs().max()):g}"


def rare_class(victim: Victim) -> str:
    column = victim.statistics(asking_for()).cross()[:, RARE]
    return f"answers without the {NUM_RARE} examples; that column of U is {float(column.abs().max()):g}"


def many_measures(victim: Victim) -> str:
    for number in range(100):
        victim.statistics(asking_for(), factor=1.0 + number)
    return "answers"


def measures_by_resizing(victim: Victim) -> str:
    for number in range(100):
        victim.statistics(asking_for(data__resize=4 + number % 4), factor=1.0 + number)
    return "answers"


def wide_features(victim: Victim) -> str:
    victim.statistics(asking_for(model__encoder={"kind": "mlp", "widths": [512]}))
    return "answers"


def late_round(victim: Victim) -> str:
    victim.ask(Train(3, victim.model(asking_for()), 0.1), asking_for())
    return "answers"


def many_trainings(victim: Victim) -> str:
    victim.site = replace(victim.site, limits=SiteLimits(max_rounds=5))
    for _ in range(6):
        victim.ask(Train(0, victim.model(asking_for()), 0.0), asking_for())
    return "answers"


def wrong_model(victim: Victim) -> str:
    victim.ask(Train(0, ModelState({"../../x": torch.zeros(2)}, {}), 0.1), asking_for())
    return "answers"


def wrong_head(victim: Victim) -> str:
    victim.ask(LoadDerived({"head": torch.zeros(10, 10**4)}), asking_for())
    return "loaded"


def large_message(victim: Victim) -> str:
    model = ModelState({"w": torch.zeros(4 * victim.site.limits.max_parameters // 1000 + 10**6)}, {})
    decode(encode(Train(0, model, 0.1)), MESSAGE_TYPES, max_bytes=victim.site.limits.max_message_bytes // 1000)
    return "decoded"


def few_examples(victim: Victim) -> str:
    """A second site that has one image."""
    with np.load(victim.folder / "own.npz") as stored:
        np.savez(victim.folder / "one.npz", images=stored["images"][:2], labels=stored["labels"][:2])
    changes = {"data": f"arrays:{victim.folder / 'one.npz'}", "record": str(victim.folder / "one.json")}
    other = Victim(victim.folder)
    other.site = replace(victim.site, held_out=0.5, **changes)
    other.ask(Train(0, other.model(asking_for()), 0.1), asking_for())
    return "answers"


DEEP = '{"name": ' + "[" * 100_000
FROZEN_MAP = {
    "rounds": 0,
    "model__frozen": True,
    "model__feature_map": {"kind": "relu", "dim": 10**9},
    "model__encoder": "flatten",
}

ATTACKS: dict[str, Callable[[Victim], str]] = {
    "the file `/dev/zero` as partition": handshake(
        data={"name": "digits"}, partition={"kind": "stored", "path": "/dev/zero", "clients": 1}
    ),
    "the data `folder:/etc`": handshake(data={"name": "folder:/etc"}, partition={"kind": "iid", "clients": 1}),
    "the data `arrays:/etc/passwd`": handshake(
        data={"name": "arrays:/etc/passwd"}, partition={"kind": "iid", "clients": 1}
    ),
    "another data set": handshake(data={"name": "cifar100"}, partition={"kind": "iid", "clients": 1}),
    "the data `os:listdir`": handshake(data={"name": "os:listdir"}, partition={"kind": "iid", "clients": 1}),
    "the encoder `subprocess:Popen`": handshake(model__encoder={"kind": "subprocess:Popen", "args": "id"}),
    "a loss of its own": handshake(loss={"kind": "os:abort"}),
    "calibration `oracle`: the features of each example": handshake(calibration=to_plain(Oracle())),
    "calibration `ccvr`: second moments of each class": handshake(calibration={"kind": "ccvr"}),
    "10⁶ rounds": handshake(rounds=10**6),
    "10⁴ epochs per round": handshake(local__epochs=10**4),
    "10⁴ epochs of fine-tuning": handshake(personalization={"kind": "fine-tune", "epochs": 10**4}),
    "a layer of 10⁹ units": handshake(model__encoder={"kind": "mlp", "widths": [10**9]}),
    "a feature map of 10⁹ features": handshake(**FROZEN_MAP),
    "10⁸ clients": handshake(partition__clients=10**8),
    "an experiment of 2 MB": lambda victim: victim.ask(Handshake(), json.dumps(asking_for()) + " " * 2_000_000),
    "an experiment nested 100,000 deep": lambda victim: victim.ask(Handshake(), DEEP),
    "the run `../../etc`": lambda victim: victim.ask(Handshake(), asking_for(), "../../etc"),
    "training in round 3 of rounds 0 to 2": late_round,
    "a sixth training in a run, where `max_rounds` is 5": many_trainings,
    "a model with other names": wrong_model,
    "a head of another shape": wrong_head,
    "a message larger than any allowed model (limit and message 1,000 times smaller here)": large_message,
    "an update from one example": few_examples,
    "statistics of 512 features from 320 examples": wide_features,
    "21 different statistics of the same data": many_measures,
    "the same with images of other sizes": measures_by_resizing,
    "statistics of a class with 3 examples": rare_class,
    "two statistics with hold-outs that differ in one example": two_hold_outs,
    "two statistics with hold-outs of other seeds": two_seeds,
}


def outcome(attack: Callable[[Victim], str]) -> str:
    """What the site did with this request: its answer, or `refused: ` and the cause."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return str(attack(Victim(Path(folder))))
        except (SpherefedError, ValueError, RecursionError) as error:
            return f"refused: {' '.join(str(error).split()).replace(folder, '…')}"


def table() -> str:
    lines = ["| the server asks for | the site |", "|---|---|"]
    for name, attack in ATTACKS.items():
        said = outcome(attack).replace("|", "\\|")
        lines.append(f"| {name} | {said if len(said) <= 150 else said[:149] + '…'} |")
    refused = sum("| refused: " in line for line in lines)
    lines.append(
        f"\n{refused} of {len(ATTACKS)} requests are refused. If the experiment could choose the hold-out, as in a "
        f"simulation, the difference of two statistics would be one image: cosine {in_a_simulation():.7f}."
    )
    return "\n".join(lines)


def main() -> None:
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        write_section("reliability.md", "hostile server", text)


if __name__ == "__main__":
    main()
