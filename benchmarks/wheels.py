"""Collect the wheels that tests/gpu needs on a machine with torch but without a network, and use them there.

python -m benchmarks.wheels collect FOLDER 3.11 3.12                    # with a network and .venv: make gpu-wheels
python -m benchmarks.wheels run FOLDER -m pytest -m gpu tests/gpu       # there: make test-gpu WHEELS=FOLDER
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

# Packages that the tests, training and its tables import; the packages required by these are added.
ROOTS = "pytest pytest-xdist fairseq-fixed bitarray regex tqdm hydra-core omegaconf numpy scipy scikit-learn sacrebleu".split()
ROOTS += "rouge-score sacremoses subword-nmt sentencepiece safetensors jinja2 matplotlib rich pillow".split()
ROOTS += ["pandas", "pydantic", "pyyaml", "entmax"]
PEERS = {"adasplash": "0.2.2"}  # only timed next to ours on a GPU; not installed here
THERE = re.compile(r"torch|torchaudio|torchvision|triton|nvidia-.*|cuda-.*")  # installed with the machine's torch
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (5, 12, 17, 24, 26, 27, 28)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]


def run(wheels: Path, arguments: Sequence[str]) -> None:
    """Become `python ARGUMENTS` with the wheels for this Python, installed into a subfolder without a network."""
    major, minor = sys.version_info[:2]
    fits = re.compile(rf"-(cp{major}{minor}|py[23]|py{major}{minor}|py2\.py3|cp3\d+-abi3)-")
    target = wheels / f"site-{major}.{minor}"
    if not target.exists():
        files = [str(w) for w in sorted(wheels.glob("*.whl")) if fits.search(w.name)]
        pip = [sys.executable, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-index", "--no-deps", "--no-compile", "--target", str(target), *files], check=True)
    path = os.pathsep.join(filter(None, [str(target.resolve()), os.environ.get("PYTHONPATH")]))
    os.execve(sys.executable, [sys.executable, *arguments], os.environ | {"PYTHONPATH": path})


def needed() -> dict[str, str]:
    """Name -> installed version of ROOTS and all packages that they require, without torch and what comes with it."""
    found: dict[str, str] = {}
    open_ = list(ROOTS)
    while open_:
        name = re.sub("[-_.]+", "-", open_.pop()).lower()
        if name in found or THERE.fullmatch(name):
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # required only on other systems
            continue
        open_ += [re.match(r"[\w.-]+", r)[0] for r in metadata.requires(name) or [] if "extra ==" not in r]  # type: ignore[index]
    return found


def collect(folder: Path, versions: list[str]) -> int:
    """Download the wheels for every Python version into `folder`; build those of packages that exist only as sources.

    Returns:
        0, or 1 after listing the packages that have no wheel for one of the versions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    platforms = [part for one in PLATFORMS for part in ("--platform", one)]
    for name, version in sorted((needed() | PEERS).items()):
        for python in versions:
            wanted = [f"{name}=={version}", "--no-deps"]
            fit = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
            got = subprocess.run([*pip, "download", *wanted, *fit, "-d", str(folder)], capture_output=True, check=False)
            if got.returncode == 0:
                continue
            # READTHEDOCS builds fairseq without its extensions, as scripts/setup.py does
            command = [*pip, "wheel", "--no-build-isolation", *wanted, "-w", str(folder)]
            environment = os.environ | {"READTHEDOCS": "1"}
            built = subprocess.run(command, env=environment, capture_output=True, check=False).returncode
            pure = any(f.name.endswith("-none-any.whl") for f in folder.glob(f"{name.replace('-', '_')}-*.whl"))
            if built or not pure:
                missing.append(f"{name} {version} for {python}")
    print(f"{len(list(folder.glob('*.whl')))} wheels in {folder}", *(f"no wheel: {one}" for one in missing), sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "run":
        run(Path(folder), rest)
    sys.exit(collect(Path(folder), rest or ["3.11", "3.12"]))
