"""Build the wheels and the source distribution of a release in dist/, and check them: `make release`.

    make release                        build, check, try on fresh Debian systems (needs root and debootstrap), say what to upload
    make release ARGS=build             only build and check the files

A wheel holds kernels for the instruction sets of build.BUILT_FOR; `python -m sparse_attention` says which one runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from sparse_attention.kernels.native import build  # noqa: E402

DIST, MOST, GLIBC = ROOT / "dist", 6_000_000, (2, 28)
# By machine: the compiler, the flags of each instruction set, and the first version of its C library.
MACHINES = {
    "x86_64": (
        "x86_64-linux-gnu-g++",
        {
            "avx512": ("-march=x86-64-v4", "-mavx512vnni"),
            "avx2": ("-march=x86-64-v3", "-DSPARSE_ATTENTION_NO_AVX512"),
            "portable": ("-march=x86-64", "-DSPARSE_ATTENTION_PORTABLE"),
        },
        "GLIBC_2.2.5",
    ),
    "aarch64": ("aarch64-linux-gnu-g++", {"portable": ("-march=armv8-a",)}, "GLIBC_2.17"),
}
RENEWED = "exp exp2 log log2 pow".split()  # in glibc 2.29; the older versions compute the same
TOOLS = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--quiet"]


def run(*command: object, **given) -> str:
    """The output of a command; ends the release with it if the command fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **given)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def kernels(machine: str, target: Path) -> None:
    """Compile every library of a wheel for `machine` into the folder `target`."""
    compiler, variants, oldest = MACHINES[machine]
    target.mkdir(parents=True)
    old = target / "old.h"
    old.write_text("".join(f'__asm__(".symver {name},{name}@{oldest}");\n' for name in RENEWED))

    def one(unit: str, name: str) -> None:
        flags = ("-O3", "-fopenmp-simd", "-s", "-static-libgcc", "-include", str(old), *variants[name])
        run(*build.compile_command([compiler], "native", unit, flags, str(target / f"{unit}-{name}.so")))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in [pool.submit(one, unit, name) for unit in build.UNITS for name in variants]:
            job.result()
    old.unlink()


def wheel(machine: str | None) -> Path:
    """The wheel for `machine` from the tracked files, or without it the source distribution, in dist/."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        files = run("git", "ls-files", "sparse_attention", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT).split()
        for name in files:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
        what = ["--sdist"]
        if machine:
            kernels(machine, source / build.BUILT.relative_to(ROOT))
            tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
            what = ["--wheel", f"-C--build-option=--plat-name={tag}"]
        run(TOOLS[0], "build", *what, "--out-dir", out, source)
        (made,) = [p for p in out.iterdir() if p.suffix in (".whl", ".gz")]
        DIST.mkdir(exist_ok=True)
        return Path(shutil.copy(made, DIST))


def check(path: Path, machine: str) -> str:
    """What is in a wheel, in words; ends the release if it needs what a machine may not have."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as packed:
        names = {n for n in packed.namelist() if ".dist-info/" not in n}
        packed.extractall(folder)
        libraries = [n for n in names if n.endswith(".so")]
        tracked = set(run("git", "ls-files", "sparse_attention", cwd=ROOT).split())
        expected = {f"{build.BUILT.relative_to(ROOT)}/{u}-{v}.so" for u in build.UNITS for v in MACHINES[machine][1]}
        if names != tracked | expected:
            sys.exit(f"{path.name}: other files than those of the library: {sorted(names ^ (tracked | expected))}")
        needs, versions = set(), set()
        for name in libraries:
            needs |= set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-Wd", f"{folder}/{name}")))
            symbols = run("readelf", "-W", "--dyn-syms", f"{folder}/{name}")
            versions |= {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", symbols)}
    if foreign := {n for n in needs if not re.match(r"libc\.|libm\.|ld-linux", n)}:
        sys.exit(f"{path.name}: the kernels need {sorted(foreign)}")
    if max(versions) > GLIBC or path.stat().st_size > MOST:
        sys.exit(f"{path.name}: needs glibc {max(versions)}, or is too large: {path.stat().st_size} bytes")
    newest = ".".join(map(str, max(versions)))
    return f"{path.stat().st_size / 1e6:.1f} MB, {len(libraries)} libraries, which need {', '.join(sorted(needs))} (glibc {newest})"


def files() -> list[Path]:
    """Build and check everything; returns the paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    made = [wheel(None)]
    print(f"{made[0].name}: {made[0].stat().st_size / 1e6:.1f} MB", flush=True)
    for machine, (compiler, *_) in MACHINES.items():
        if not shutil.which(compiler):
            print(f"no wheel for {machine}: apt-get install g++-{machine.replace('_', '-')}-linux-gnu", flush=True)
            continue
        made.append(wheel(machine))
        print(f"{made[-1].name}: {check(made[-1], machine)}", flush=True)
        seen = re.search(r'tag:\s*"(\w+)"', run(*TOOLS, "auditwheel", "show", made[-1]))
        print(f"  auditwheel: consistent with {seen[1] if seen else 'no tag'}", flush=True)
    print(run(*TOOLS, "twine", "check", "--strict", *made).strip(), flush=True)
    return made


def roots() -> None:
    """Install the wheel on fresh Debian systems, or say how to where these cannot be made."""
    if os.geteuid() or not shutil.which("debootstrap"):
        print(
            "not tried on fresh Debian systems: run `bash tests/fresh.sh wheel` as root, with debootstrap (apt-get install debootstrap)"
        )
    elif subprocess.run(["bash", "tests/fresh.sh", "wheel"], cwd=ROOT).returncode:
        sys.exit("the wheel fails on a fresh Debian system: see above; do not upload it")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["build"]):
        sys.exit(f"{' '.join(sys.argv[1:])!r} is not build")
    made = files()
    if not sys.argv[1:]:
        roots()
    print("to upload: twine upload", *(p.relative_to(ROOT) for p in made))
