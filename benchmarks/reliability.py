"""Figures of docs/reliability.md about kills, malformed input and the cost of digests.

python benchmarks/reliability.py             measure and print the table; about half an hour on a quiet machine
python benchmarks/reliability.py --write     also write it into docs/reliability.md, between its markers
python benchmarks/reliability.py --keep      take results of parts that were measured before from .bench/reliability

The other tables of the page have commands of their own, named above each of them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sections import write_section

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".bench" / "reliability"
SEED = 13
NUM_PROCESSES = 50
CASES = {"settings": 6000, "files": 6000, "messages": 4000, "data": 3500, "runs": 3000}
WORDS = {
    "settings": "`--set`, then a run if it is accepted",
    "files": "experiments in TOML and JSON",
    "messages": "replies in the records of the codec",
    "data": "arrays, image folders, IDX files, stored partitions",
    "runs": "run directories: load, check, evaluate, resume, report",
}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def measured(name: str, module: str, *arguments: object) -> dict[str, Any]:
    """What a module of tests/support prints, from this or from an earlier call."""
    file = RESULTS / f"{name}.json"
    if "--keep" not in sys.argv[1:] or not file.exists():
        command = [sys.executable, "-m", f"support.{module}", *map(str, arguments)]
        ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        file.write_text(ended.stdout.splitlines()[-1])
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def share_of_digests(rounds: int = 60) -> float:
    """Time spent on digests as a fraction of the time of the rounds of a digits run; both in one process."""
    from spherefed.recipes import RECIPES
    from spherefed.runs import round_log
    from spherefed.runs.runner import run_to_end

    spent = 0.0

    def timed(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return original(*given, **named)
            finally:
                spent += time.perf_counter() - began

        setattr(owner, name, wrapped)

    for name in ("add", "mark"):
        timed(round_log.GrowingDigest, name)
    for name in ("digest", "_whole_digest"):
        timed(round_log, name)
    timed(round_log.RoundLog, "_digests_at")
    with tempfile.TemporaryDirectory() as folder:
        from dataclasses import replace

        result = run_to_end(replace(RECIPES["digits"](), rounds=rounds), Path(folder) / "run")
    return spent / float(result["seconds"]["train"])


def table() -> str:
    lines = ["| what | how often | result |", "|---|---|---|"]
    killed = measured("killed", "killed", 200, SEED)
    lines.append(
        f"| SIGKILL at random moments, then resume | {killed['kills']} kills of {killed['runs']} runs | "
        f"{killed['different']} different in a bit, {killed['unreadable']} unreadable, at most "
        f"{killed['most_rounds_redone']} round redone after each |"
    )
    for area, cases in CASES.items():
        found = measured(area, "fuzzing", area, cases, SEED)
        lines.append(
            f"| malformed {WORDS[area]} | {found['cases']:,} cases | {len(found['faults'])} tracebacks; slowest "
            f"{found['slowest']:.2f} s of processor time; peak {found['peak'] / 1e6:.0f} MB in all |"
        )
    found = measured("processes", "fuzzed_processes", NUM_PROCESSES, SEED)
    ends = ", ".join(f"{number} with code {code}" for code, number in sorted(found["counts"].items()))
    lines.append(
        f"| malformed commands as real processes | {found['cases']} processes | {len(found['faults'])} tracebacks; "
        f"{ends}; peak {found['peak'] / 1e6:.0f} MB |"
    )
    lines.append(f"| digests of a run with 10 clients on digits | 60 rounds | {share_of_digests():.1%} of their time |")
    return "\n".join(lines)


def main() -> None:
    text = table()
    print(text)
    if "--write" in sys.argv[1:]:
        write_section("reliability.md", "faults", text)


if __name__ == "__main__":
    main()
