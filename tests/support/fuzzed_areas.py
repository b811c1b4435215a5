"""Where malformed input can come from, for `support.fuzzing`: each area makes a random case from a generator."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from spherefed.assembly import assemble
from spherefed.data import sources
from spherefed.experiment import Data, Experiment, Model, read_experiment, with_settings
from spherefed.messages import EvaluateReply, Measure, MeasureReply, Train, TrainReply, max_reply_bytes
from spherefed.nn.encoders import Mlp
from spherefed.runs.checking import check_run
from spherefed.runs.digests import BEGUN, DIGESTS, FINISHED, sha256
from spherefed.runs.loading import evaluate_run, load
from spherefed.runs.runner import Engine, run, run_to_end
from spherefed.schema import to_plain
from spherefed.server.algorithms import Algorithm
from spherefed.server.validation import ReplyLog
from support import data_files
from support.small import blobs, save_arrays, tiny

Case = tuple[str, Callable[[], object]]
"""A case in words, and what it does."""
Maker = Callable[[random.Random], Case]


class UndecodableError(Exception):
    """Records that hold no message: the engine records them as a failure of their sender."""


# Values in TOML


def words(text: str) -> list[str]:
    return text.split()


ATOMS = words("""
0 1 -1 2 3 true false nan inf -inf 0.5 1e-300 1e308 -0.0 0x10 1e400 1000000000 100000000 9223372036854775807
9223372036854775808 -9223372036854775809 "" "none" "a" 'x' "../../etc" "\\u0000" "\\ud800" none iid dirichlet 1979-05-27
07:32:00 [] {} [1] [[]] [1000000000] [-1] ["a"] {kind="none"} {kind=[1]} {kind={}} {kind=1} {kind="iid"} {kind=""} {a=1}
{kind="a.b:C"} "os:system" "json:loads" "a:b" é 💥 "folder:~nobody/x" "folder:/nowhere" "arrays:/dev/null"
"arrays:\\u0000" "folder:." "arrays:." "memory:x" [1,2,3] [0.1,0.2] mlp ffc ccvr learned
""")
ATOMS += ['"' + "x" * 5000 + '"', "[" + "1," * 500 + "1]"]

PLAUSIBLE = words("""
iid shards quantity dirichlet mse cross-entropy sgd adam yogi adagrad learned orthonormal random tammes ffc ffc-gcv ccvr
lda ncm fedcof ffc-balanced oracle median trimmed-mean norm-clipping krum {kind="krum",hostile=1} clients examples head
encoder all constant cosine multistep scaffold feddyn moon fine-tune local-ffc blended-ffc average local reestimate
smallnet convnet flatten fourier relu group batch {kind="mlp",widths=[3]} digits by-column stored
{kind="shards",clients=3,shards_per_client=1} {kind="dirichlet",alpha=0.1,min_size=2}
""")
NUMBERS = words("0 1 2 3 4 5 8 10 0.1 0.3 0.5 0.9 1.0 2.5 100 1e-3 1e6 -1 1e30")


def like(current: Any, rng: random.Random) -> str:
    """A value of the kind that the field has."""
    if isinstance(current, bool):
        return rng.choice(["true", "false"])
    if isinstance(current, int | float):
        return rng.choice(NUMBERS)
    if isinstance(current, list):
        return f"[{', '.join(rng.choice(NUMBERS) for _ in range(rng.randrange(4)))}]"
    return rng.choice(PLAUSIBLE) if current is not None or rng.random() < 0.5 else rng.choice(NUMBERS)


def value(rng: random.Random) -> str:
    """Any value at all."""
    depth = rng.choice([3, 100, 2000, 50_000])
    letters = [rng.choice([rng.randrange(32, 127), rng.randrange(1, 0xD7FF)]) for _ in range(rng.randrange(30))]
    odd = [
        "9" * rng.choice([20, 400, 5000, 100_000]),
        "[" * depth + "]" * rng.choice([depth, depth - 1, 0]),
        "{a=" * min(depth, 2000) + "1" + "}" * min(depth, 2000),
        "".join(map(chr, letters)),
        f"{rng.choice(['-', ''])}{rng.randrange(10**6) / 1000}",
        "0x" + "f" * rng.choice([4, 17, 5000]),
    ]
    return rng.choice(odd) if rng.random() < 0.4 else rng.choice(ATOMS)


def paths(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, child in plain.items() if isinstance(plain, dict) else ():
        yield prefix + name, child
        yield from paths(child, f"{prefix}{name}.")


ODD_PATHS = ["", ".", "..", "a", "kind", "seed.x.y", "a." * 3000 + "a", " ", "\0", "local..lr", "=", "name.kind"]


def setting(rng: random.Random, known: list[tuple[str, Any]]) -> str:
    path, current = rng.choice(known)
    if rng.random() < 0.6:
        return f"{path}={like(current, rng)}"
    odd = rng.randrange(20)
    if odd == 0:
        path = rng.choice(ODD_PATHS)
    elif odd == 1:
        path += rng.choice([".kind", ".x", "[0]", ".", " "])
    return f"{path}{'' if rng.randrange(40) == 0 else '='}{value(rng)}"


def base(folder: Path) -> Experiment:
    return tiny(rounds=1, data=Data(name=save_arrays(folder / "data.npz", blobs(num_train=24))))


def settings(folder: Path) -> Maker:
    experiment = base(folder)
    known = [*paths(to_plain(experiment)), *((path, 0.5) for path in OTHER_PATHS)]
    known = [(path, current) for path, current in known if path not in ("compile", "precision")]  # slow to try

    def make(rng: random.Random) -> Case:
        given = [setting(rng, known) for _ in range(rng.choice([1, 1, 1, 2, 3]))]

        def act() -> object:
            changed = with_settings(experiment, given)
            shutil.rmtree(folder / "run", ignore_errors=True)
            if changed.rounds > 2 or (changed.local and changed.local.epochs > 5):  # valid, and long
                return assemble(changed, data_root=str(folder)).plan()
            return run_to_end(changed, folder / "run", engine=Engine(data_root=str(folder)))

        return repr(given), act

    return make


OTHER_PATHS = (
    *("calibration.kind", "partition.alpha", "partition.min_size", "partition.path", "partition.shards_per_client"),
    *("algorithm.aggregation.kind", "algorithm.aggregation.hostile", "model.encoder.norm", "personalization.kind"),
    *(
        "personalization.lr",
        "loss.scale",
        "schedule.every",
        "schedule.gamma",
        "algorithm.server.lr",
        "partition.column",
    ),
    *("algorithm.correction.kind", "algorithm.correction.alpha", "calibration.ridge", "calibration.num_virtual"),
    *("model.feature_map.kind", "model.feature_map.dim", "model.head.scale", "algorithm.server.kind"),
)


# Files of experiments

TOML = """name = "tiny"
rounds = 3
seed = 1
cohort = 2
loss = "mse"
calibration = {kind = "ffc", ridge = 0.5}
[local]
lr = 0.5
epochs = 2
[partition]
kind = "dirichlet"
alpha = 0.5
clients = 4
[model]
normalize = true
head = "orthonormal"
[model.encoder]
kind = "mlp"
widths = [8, 4]
"""


WHOLE = [b"", b"{}", b"[]", b"null", b"0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few random changes of bytes, lines or lengths."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        kind, at = rng.randrange(10), rng.randrange(len(content) + 1)
        if kind == 0:
            content = content[:at]
        elif kind == 1:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif kind == 2:
            content = content[:at] + rng.randbytes(rng.randrange(20)) + content[at:]
        elif kind == 3:
            content = content[:at] + content[at + rng.randrange(50) :]
        elif kind == 4:
            lines = content.split(b"\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            content = b"\n".join(lines)
        elif kind == 5:
            content = content.replace(
                rng.choice([b"1", b"0", b'"', b"[", b"}", b","]), value(rng).encode("utf-8", "replace"), 1
            )
        elif kind == 6:
            content = rng.choice(
                [b"", b"{}", b"[]", b"null", b"0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000, content * 3]
            )
        elif kind == 8:  # another digit
            digits = [i for i, byte in enumerate(content[:10_000]) if 48 <= byte < 58]
            spot = rng.choice(digits) if digits else 0
            content = content[:spot] + bytes([rng.randrange(48, 58)]) + content[spot + 1 :]
        elif kind == 9:
            lines = content.split(b"\n")
            del lines[rng.randrange(len(lines))]
            content = b"\n".join(lines)
        else:
            content = content[:at] + rng.choice([b"\0", b"\xff", b"\r", b"9" * 5000, b"1e999", b"NaN"]) + content[at:]
    return content


def files(folder: Path) -> Maker:
    experiment = base(folder)
    sources_ = {".toml": TOML.encode(), ".json": json.dumps(to_plain(experiment), indent=1).encode()}

    def make(rng: random.Random) -> Case:
        suffix = rng.choice([".toml", ".json"])
        content = mutated(sources_[suffix], rng)
        path = folder / f"experiment{suffix}"

        def act() -> object:
            path.write_bytes(content)
            return read_experiment(path)

        return repr(content[:300]), act

    return make


# Run directories


def runs(folder: Path) -> Maker:
    """Two finished runs and two stopped ones; one of each with client states."""
    name = save_arrays(folder / "data.npz", blobs(num_train=24))
    plain = tiny(rounds=2, data=Data(name=name))
    stateful = tiny(
        rounds=2,
        data=Data(name=name, held_out=0.2),
        model=Model(encoder=Mlp(widths=(4,))),
        algorithm=Algorithm(share="encoder"),
        calibration=None,
    )
    for label, experiment in (("plain", plain), ("stateful", stateful)):
        run_to_end(experiment, folder / f"{label}-finished")
        rounds = run(experiment, folder / f"{label}-stopped")
        next(rounds)
        rounds.close()  # type: ignore[attr-defined]

    def make(rng: random.Random) -> Case:
        label, state = rng.choice(["plain", "stateful"]), rng.choice(["finished", "stopped"])
        source, copy = folder / f"{label}-{state}", folder / "copy"
        every = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        changes = [(rng.choice(every), rng.randrange(8), rng.getrandbits(64)) for _ in range(rng.choice([1, 1, 2]))]
        forged, action = rng.random() < 0.6, rng.choice(["load", "check", "evaluate", "resume", "report"])

        def act() -> object:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            for file, kind, seed in changes:
                spoil(copy / file, kind, random.Random(seed))
            if forged:
                forge(copy)
            return use(copy, action, plain if label == "plain" else stateful, name)

        return f"{label}-{state} {action} forged={forged} {changes}", act

    return make


def spoil(path: Path, kind: int, rng: random.Random) -> None:
    if not path.is_file():
        return
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    elif kind in (2, 3, 4, 5) and path.suffix in (".json", ".jsonl"):
        spoil_json(path, rng)
    else:
        path.write_bytes(mutated(path.read_bytes(), rng))


ODD: list[Any] = [None, 0, -1, 1.5, "", "x", [], {}, [[]], True, 10**18, 10**400, -(10**400), "1", [None], {"a": 1}]
ODD += [float("inf"), float("nan")]


def spoil_json(path: Path, rng: random.Random) -> None:
    """Replace or remove one value anywhere; the file stays JSON."""
    text = path.read_text(errors="replace")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    if not lines:
        path.write_text(rng.choice(["{}\n", "[]\n", '{"round": 0}\n', "1\n", '{"round": -1, "clients": 5}\n']))
        return
    number = rng.randrange(len(lines))
    try:
        plain = json.loads(lines[number])
    except (ValueError, RecursionError):  # spoilt before
        return
    spots = list(all_spots(plain))
    if spots:
        container, key = rng.choice(spots)
        if rng.random() < 0.3:
            del container[key]
        else:
            container[key] = rng.choice(ODD)
    else:
        plain = rng.choice(ODD)
    lines[number] = json.dumps(plain)
    path.write_text("\n".join(lines) + "\n")


def all_spots(plain: Any) -> Iterator[tuple[Any, Any]]:
    keys = plain.keys() if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    for key in list(keys):
        yield plain, key
        yield from all_spots(plain[key])


def forge(run_directory: Path) -> None:
    """Matching digests for what is there now: so that what lies behind the digests is tried as well."""
    path = run_directory / DIGESTS
    try:
        stored = json.loads(path.read_text())
        for name in (*BEGUN, *FINISHED):
            if name in stored and (run_directory / name).is_file():
                stored[name] = [sha256((run_directory / name).read_bytes())]
        path.write_text(json.dumps(stored))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return  # nothing to forge


def use(copy: Path, action: str, experiment: Experiment, data: str) -> object:
    if action == "load":
        return load(copy, client=1 if experiment.algorithm.share == "encoder" else None)
    if action == "check":
        return check_run(copy)
    if action == "evaluate":
        return evaluate_run(copy, data)
    if action == "report":
        from spherefed.report.summary import summarize

        return summarize([copy])
    return run_to_end(experiment, copy, resume=True)


# Messages


def messages(folder: Path) -> Maker:
    from flwr.app import RecordDict

    from spherefed.deployment.app import REPLY_TYPES
    from spherefed.engines.flower_codec import MESSAGE, SAFETENSORS, decode, encode
    from support.small import assembled, in_process

    assembly = assembled(blobs(num_train=24))
    model, fleet = assembly.initial(), in_process(assembly)
    requests = {TrainReply: Train(1, model, 0.5), MeasureReply: Measure(1, model)}
    replies: dict[type, Any] = {kind: next(iter(fleet.ask([1], request))) for kind, request in requests.items()}
    from spherefed.messages import Evaluate

    requests[EvaluateReply] = Evaluate(1, model)  # type: ignore[assignment]
    replies[EvaluateReply] = EvaluateReply(1, 1, 10, 5)

    def make(rng: random.Random) -> Case:
        kind = rng.choice(list(replies))
        request: Any = requests[kind]
        records = encode(replies[kind])
        record = records[MESSAGE]
        for _ in range(rng.choice([1, 1, 2])):
            which = rng.randrange(6)
            if which == 0 and "fields" in record:
                record["fields"] = mutated(str(record["fields"]).encode(), rng).decode("utf-8", "replace")
            elif which == 1:
                fields = json.loads(json.dumps({"client": 1, "round": 1, "num_examples": 6}))
                container, key = rng.choice(list(all_spots(fields)))
                container[key] = rng.choice(ODD)
                record["fields"] = json.dumps(fields)
            elif which == 2:
                record["kind"] = rng.choice(
                    ["", "TrainReply", "MeasureReply", "EvaluateReply", "x" * 10**6, 5, 1.5, [1]]
                )
            elif which == 3 and rng.random() < 0.2:
                del record[rng.choice(list(record))]
            elif isinstance(record.get(SAFETENSORS), bytes):
                record[SAFETENSORS] = mutated(record[SAFETENSORS], rng)
            if not record:
                break

        def act() -> object:
            try:
                decoded = decode(RecordDict({MESSAGE: record}), REPLY_TYPES, max_bytes=max_reply_bytes(request))
            except ValueError as error:
                raise UndecodableError from error
            log: ReplyLog[Any] = ReplyLog(kind, request, [0, 1, 2])
            return log.validate(decoded)

        return f"{kind.__name__} {str(dict(record))[:200]}", act

    return make


# Files of data sets


def data(folder: Path) -> Maker:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    save_arrays(folder / "data.npz", blobs())
    data_files.image_folder(folder / "images", size=(8, 6))
    data_files.write_fashion(data_files.fashion_members(), root, packed=False)
    import numpy as np

    from spherefed.data.partition import Iid, partition, write_partition

    labels = blobs().train.labels.numpy()
    write_partition(partition(Iid(clients=4), labels, 3, np.random.default_rng(0)), folder / "parts.json")
    image_files = sorted(path for path in (folder / "images").rglob("*") if path.is_file())
    fashion = sorted(path for path in (root / "fashion-mnist").rglob("*") if path.is_file())
    experiment = base(folder)
    stored = replace(
        experiment,
        partition=with_settings(
            experiment, [f'partition={{kind="stored", path="{folder / "parts.json"}", clients=4}}']
        ).partition,
    )
    uses: list[tuple[list[Path], Callable[[], object]]] = [
        ([folder / "data.npz"], lambda: sources.load(f"arrays:{folder / 'data.npz'}", root)),
        (image_files, lambda: sources.load(f"folder:{folder / 'images'}", root)),
        (fashion, lambda: sources.load("fashion-mnist", root)),
        ([folder / "parts.json"], lambda: assemble(stored)),
    ]
    originals = {path: path.read_bytes() for paths_, _ in uses for path in paths_}

    def make(rng: random.Random) -> Case:
        candidates, load_data = rng.choice(uses)
        path = rng.choice(candidates)
        content = mutated(originals[path], rng)
        odd_name = rng.random() < 0.05 and path in image_files

        def act() -> object:
            extra = Path(str(path.parent.parent / "x").encode().decode() + "\udcff") if odd_name else None
            path.write_bytes(content)
            try:
                if extra is not None:
                    extra.mkdir(exist_ok=True)
                return load_data()
            finally:
                path.write_bytes(originals[path])
                if extra is not None:
                    extra.rmdir()

        return f"{path.name} {content[:100]!r}", act

    return make


AREAS: dict[str, Callable[[Path], Maker]] = {
    "settings": settings,
    "files": files,
    "runs": runs,
    "messages": messages,
    "data": data,
}
