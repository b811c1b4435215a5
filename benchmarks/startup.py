"""CPU seconds until `spherefed --help` has spoken and until `spherefed run digits` has its first round.

python benchmarks/startup.py
"""

import os
import resource
import subprocess
import sys
from statistics import median

HELP = "import sys; sys.argv = ['spherefed', '--help']; from spherefed.cli import main; main()"
TORCH = "import torch"
TORCH_AND_SKLEARN = "import torch, sklearn.datasets"
FIRST_ROUND = """
import os, pathlib, tempfile
from spherefed.recipes import RECIPES
from spherefed.runs.runner import run
with tempfile.TemporaryDirectory() as folder:
    rounds = run(RECIPES["digits"](), pathlib.Path(folder) / "run")
    next(rounds)
    rounds.close()
"""
REPETITIONS = 5


def main() -> None:
    programs = {"help": HELP, "torch": TORCH, "torch and scikit-learn": TORCH_AND_SKLEARN, "first round": FIRST_ROUND}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPETITIONS):
        for name, program in programs.items():
            seconds[name].append(_cpu(program))
    print("| | CPU seconds |\n|---|---|")
    print(f"| `spherefed --help` | {median(seconds['help']):.2f} |")
    print(f"| `import torch` | {median(seconds['torch']):.2f} |")
    print(f"| `import torch, sklearn.datasets` | {median(seconds['torch and scikit-learn']):.2f} |")
    beyond = median(a - b for a, b in zip(seconds["first round"], seconds["torch"], strict=True))
    print(f"| `run` on digits up to its first round | {median(seconds['first round']):.2f} |")
    print(f"| … without importing torch | {beyond:.2f} |")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _cpu(program: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
