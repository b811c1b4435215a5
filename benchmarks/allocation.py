"""What it is worth to keep freed memory: ConvNet steps in processes of their own, with and without.

python benchmarks/allocation.py --repetitions 5
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

STEPS = """
import json, resource, sys, time
import torch
from torch.nn import functional
from spherefed.acceleration.memory_reuse import keep_freed_memory
from spherefed.nn.encoders import ConvNet

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
net = torch.nn.Sequential(ConvNet().build((3, 32, 32)), torch.nn.Linear(1024, 100))
inputs, labels = torch.randn(64, 3, 32, 32), torch.arange(64)
seconds = []
for step in range(25):
    if step == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    began = time.process_time()
    net.zero_grad(set_to_none=True)
    functional.cross_entropy(net(inputs), labels).backward()
    seconds.append(time.process_time() - began)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([1e3 * sorted(seconds[5:])[10], (after.ru_minflt - before) / 20, after.ru_maxrss / 1024]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    found: dict[str, list[list[float]]] = {"glibc's default": [], "kept": []}
    for _ in range(repetitions):
        for how, figures in found.items():
            done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
            figures.append(json.loads(done.stdout))
    print(
        "| freed memory | CPU ms per step | lowest to highest | page faults per step | peak MB |\n|---|---|---|---|---|"
    )
    for how, figures in found.items():
        times, faults, peaks = zip(*figures, strict=True)
        spread = f"{min(times):.0f} – {max(times):.0f}"
        print(f"| {how} | {median(times):.0f} | {spread} | {median(faults):,.0f} | {median(peaks):.0f} |")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
