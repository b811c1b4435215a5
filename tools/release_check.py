"""Build wheel and sdist as a release would, check them, and install each in fresh environments.

    python tools/release_check.py [VERSION …]        # versions of Python to try: 3.11 3.12 3.13

Run by `make release-check`. It needs the network or a pip cache: the environments are real ones.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")

TRIAL = """
import spherefed as sf
experiment = sf.recipe("digits", method="fedavg+spherefed", rounds=1, local={"epochs": 1})
result = sf.run(experiment, progress=False)
assert result.accuracy > 0.1, result
print(sf.__version__, f"{result.accuracy:.2%}", result.summary["weights_sha256"][:12])
"""


def main(versions: tuple[str, ...]) -> int:
    """Print one line per check; the exit code says whether all passed."""
    faults = version_faults()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, sdist = build(folder)
        faults += content_faults(wheel, sdist)
        call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        for version in versions:
            if (python := interpreter(version)) is None:
                print(f"Python {version}: not on this machine, so not checked")
                continue
            install(python, wheel, folder / f"wheel-{version}")
            if version == versions[0]:
                install(python, sdist, folder / f"sdist-{version}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


def version_faults() -> list[str]:
    """The places that state the version and disagree with pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    stated = {
        "CHANGELOG.md": re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[
            :1
        ],
        "CITATION.cff": re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M),
    }
    print(f"version {version}")
    return [
        f"{name} states {found or 'no version'}, not {version}" for name, found in stated.items() if found != [version]
    ]


def build(folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist, from a copy of what git tracks."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    call(sys.executable, "-m", "build", "--outdir", folder / "dist", source)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    print(f"built {wheel.name} ({wheel.stat().st_size:,} bytes) and {sdist.name} ({sdist.stat().st_size:,} bytes)")
    return wheel, sdist


def content_faults(wheel: Path, sdist: Path) -> list[str]:
    """Files of the package that are missing, files that do not belong there, and missing metadata."""
    package = ROOT / "src" / "spherefed"
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(packed.read(metadata).decode())
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", "src/spherefed"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    expected = {f"spherefed/{Path(name).relative_to('src/spherefed').as_posix()}" for name in tracked}
    faults = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    faults += [
        f"the wheel has {name}"
        for name in sorted(names)
        if name.split("/")[0] not in ("spherefed", metadata.split("/")[0])
    ]
    wanted = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "constraints.txt", "mkdocs.yml")
    faults += [f"the sdist lacks {name}" for name in wanted if name not in inside]
    faults += [f"the metadata lack {name}" for name in ("License-Expression", "Requires-Python") if not fields[name]]
    if not str(fields.get_payload()).startswith("# spherefed"):
        faults.append("the long description is not the README")
    print(f"{len(names)} files in the wheel for {package.name}, {len(inside)} in the sdist")
    return faults


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or of pyenv."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")


def install(python: str, package: Path, folder: Path) -> None:
    """Install into a fresh environment and use the package there, outside the checkout."""
    call(python, "-m", "venv", folder)
    call(folder / "bin" / "pip", "install", "-q", "-c", ROOT / "constraints.txt", package)
    call(folder / "bin" / "pip", "check")
    trial = call(folder / "bin" / "python", "-c", TRIAL, cwd=folder)
    call(folder / "bin" / "spherefed", "run", "digits", "--set", "rounds=1", "--out", "run", cwd=folder)
    call(folder / "bin" / "spherefed", "report", "run", "--out", "page.html", cwd=folder)
    assert (folder / "page.html").stat().st_size > 10_000, "the page of a run is empty"
    print(f"{package.name} in a fresh environment of {python}: {trial.strip()}", flush=True)
    shutil.rmtree(folder)


def call(*words: object, cwd: Path | None = None) -> str:
    """Run a command; its output is shown only if it fails."""
    ended = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{ended.stdout}\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or VERSIONS))
