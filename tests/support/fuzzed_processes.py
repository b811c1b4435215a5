"""Malformed input for real processes: `python -m support.fuzzed_processes CASES SEED` prints JSON about their ends."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support import fuzzed_areas

MAX_BYTES = 500 * 10**6
"""Peak memory of a whole process."""


def command(rng: random.Random, folder: Path, known: list[tuple[str, Any]]) -> list[str]:
    """A command with something wrong in it, most of the time."""
    which = rng.choice(["set", "set", "file", "run", "check", "evaluate", "report", "name"])
    if which == "set":
        given = fuzzed_areas.setting(rng, known)[:100_000].replace("\0", "")
        return ["run", str(folder / "tiny.json"), "--out", str(folder / "out"), "--set", given, "--set", "rounds=1"]
    if which == "file":
        file = folder / "mutated.toml"
        file.write_bytes(fuzzed_areas.mutated(fuzzed_areas.TOML.encode(), rng))
        return ["run", str(file), "--out", str(folder / "out"), "--set", "rounds=1"]
    if which == "name":
        return ["run", rng.choice(["", "digit", "~nobody/x", "a/b", "/dev/null", "/", "x" * 5000, "é", "-"])]
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / f"plain-{rng.choice(['finished', 'stopped'])}", copy)
    every = sorted(path for path in copy.iterdir() if path.is_file())
    fuzzed_areas.spoil(rng.choice(every), rng.randrange(8), rng)
    if rng.random() < 0.6:
        fuzzed_areas.forge(copy)
    if which == "evaluate":
        return ["evaluate", str(copy), "--data", f"arrays:{folder / 'data.npz'}"]
    if which == "report":
        return ["report", str(copy), "--out", str(folder / "page.html")]
    return ["runs", "check", str(copy)] if which == "check" else ["run", str(copy), "--out", str(copy), "--resume"]


def fuzz_processes(cases: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run commands as users do; exit codes, memory, and all that ended with a traceback or a code beyond 0, 1 and 2."""
    fuzzed_areas.runs(folder)
    experiment = fuzzed_areas.base(folder)
    from spherefed.experiment import experiment_to_json
    from spherefed.schema import to_plain

    (folder / "tiny.json").write_text(experiment_to_json(experiment))
    known = [*fuzzed_areas.paths(to_plain(experiment))]
    codes: dict[str, int] = {}
    faults, peak = [], 0
    for number in range(cases):
        shutil.rmtree(folder / "out", ignore_errors=True)
        arguments = command(random.Random(f"processes {seed} {number}"), folder, known)
        errors = folder / "errors"
        with errors.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "spherefed", *arguments], stdout=subprocess.DEVNULL, stderr=sink, cwd=folder
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        said = errors.read_text(errors="replace")
        codes[str(process.returncode)] = codes.get(str(process.returncode), 0) + 1
        peak = max(peak, usage.ru_maxrss * 1024)
        if process.returncode not in (0, 1, 2) or "Traceback" in said or usage.ru_maxrss * 1024 > MAX_BYTES:
            faults.append({"number": number, "arguments": str(arguments)[:400], "said": said[-2000:]})
    return {"area": "processes", "cases": cases, "counts": codes, "peak": peak, "faults": faults}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="spherefed-fuzz-"))
    try:
        print(json.dumps(fuzz_processes(int(sys.argv[1]), int(sys.argv[2]), folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
