"""Build or repair .venv; return at once if there is nothing to do. Needs only Python's standard library.

    make setup                               what running needs: 3 GB to fetch, 6.6 GB on disk, about 3 minutes
    make setup PYTHON=/path/to/python3.13    with this interpreter
    make setup TORCH=cpu                     torch without CUDA, from torch's own index: about a tenth of that

`make test`, `lint`, `types` and `docs` add the developers' packages. You can stop it and start it again at any time.

    make lock                                write the locks, with uv; versions stay if they can
    make lock ARGS=--upgrade                 take the newest versions; --upgrade-package NAME: that of one package

The locks come from one resolution of pyproject.toml for Python 3.11 to 3.14 on Linux and macOS, with hashes.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV, PYTHON, UV = ROOT / ".venv", ROOT / ".venv" / "bin" / "python", ROOT / ".venv" / "bin" / "uv"
QUIET = ["--quiet"] * (not sys.stderr.isatty())  # the list of packages is for people who watch
LOCKS = {"run": "requirements.lock", "dev": "requirements-dev.lock"}  # dev: the additional packages
NEEDED = {"": 10, "cpu": 4}  # GB of free disk for each value of TORCH
OF_TORCH = r"torch|torchvision|triton|nvidia-[\w-]+|cuda-[\w-]+"  # packages that torch without CUDA replaces
PINNED = r"^(?:{})==(?:.*\\\n)*.*\n"  # packages in a lock, with their hashes
# fairseq-fixed is one release by one person. Where it cannot be installed: another build of fairseq 0.12.3.
SECOND = """ve-fairseq==0.12.3 \\
    --hash=sha256:5e84da7a92db08aae7f9cc3d155d4574d915fe1959dc1e041d514b6ef7bc000a \\
    --hash=sha256:9ba18767af12978b4700ac7d9914e6abfe365a50ce17faa6a79e8f07f4129be5"""


def main(groups: list) -> None:
    """Build .venv, or add the groups of packages that it lacks. Exits with a message if that fails."""
    torch = os.environ.get("TORCH") or stamp("torch")
    with open(ROOT / "pyproject.toml", encoding="utf-8") as lock:
        os.set_inheritable(lock.fileno(), True)  # child processes keep the lock
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for another `make setup` in this folder", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [group for group in groups if stamp(group) != signature(group, torch)]
        if not missing and healthy():
            return
        if trouble := first_trouble(torch):
            sys.exit(f"setup: {trouble}")
        second = "run" in missing and any(VENV.glob("lib/*/site-packages/ve_fairseq-*"))  # not beside the first
        if second or not healthy() or "unfinished" in (stamp("run"), stamp("dev")):
            print(f"creating .venv with Python {sys.version.split()[0]}", flush=True)
            VENV.unlink() if VENV.is_symlink() else shutil.rmtree(VENV, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
            missing = groups
        (VENV / ".torch").write_text(torch, encoding="utf-8")
        for group in missing:
            (VENV / f".{group}").write_text("unfinished", encoding="utf-8")
            install(group, torch)
            (VENV / f".{group}").write_text(signature(group, torch), encoding="utf-8")


# fewest: if possible, one version of a package for all Pythons, so that results do not depend on the Python version
RESOLVED = "--quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --fork-strategy fewest"


def lock(options: list) -> None:
    """Write requirements.lock (to run everything) and requirements-dev.lock (the additional packages); options go to uv."""
    known, files = VENV / "known.txt", [ROOT / name for name in LOCKS.values()]
    known.write_text("".join(file.read_text() for file in files if file.is_file()))

    def resolved(*asked: str) -> dict:
        """Name -> requirement with its hashes. uv keeps the versions that its output file has."""
        command = [UV, "pip", "compile", *RESOLVED.split(), "--python-version", "3.11", "-o", known, *asked]
        subprocess.run([*command, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = {}  # a package with different versions for different platforms keeps them all
        for text in re.findall(PINNED.format(r"[\w.-]+"), known.read_text(), re.M):
            found[name] = found.get(name := text.partition("==")[0], "") + text
        return found

    every = resolved("--group", "dev", "--extra", "transformers", "--extra", "onnx", *options)
    run = resolved("--group", "run").keys()
    for file, what, names in zip(files, ("running", "developing"), (run, every.keys() - run)):
        head = (
            f"# What {what} needs, with hashes, for every platform; made by `make lock`, installed by `make setup`.\n"
        )
        file.write_text(head + "".join(text for name, text in every.items() if name in names))
        print(f"{file.name}: {len(names)} packages")


def stamp(name: str) -> str:
    """What .venv holds of a group: its signature, "unfinished", or "" for nothing. `torch`: the value of TORCH."""
    return file.read_text(encoding="utf-8") if (file := VENV / f".{name}").is_file() else ""


def signature(group: str, torch: str) -> str:
    """A hash of everything that a group of packages depends on."""
    files = [(ROOT / name).read_bytes() for name in ("pyproject.toml", LOCKS[group], "requirements-fairseq.lock")]
    return hashlib.sha256(b"\0".join([*files, str(ROOT).encode(), torch.encode()])).hexdigest()


def healthy() -> bool:
    """True if .venv is where it was made, its interpreter starts, and it has pip."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = [PYTHON, "-c", "import sys, pip; print(sys.prefix)"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        return told == str(VENV) and f" {VENV.resolve()}\n" in (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    return False


def first_trouble(torch: str) -> str:
    """Why .venv cannot be built here, with the next step; "" if it can."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return f"Python 3.11 to 3.14 is needed, this is {version}; name one: make setup PYTHON=/path/to/python3.13"
    if torch not in NEEDED:
        return f"TORCH={torch} is unknown; there is TORCH=cpu, or none for the torch of requirements.lock"
    if not os.access(ROOT, os.W_OK) or (VENV.exists() and not os.access(VENV, os.W_OK)):
        return f"this user cannot write to {ROOT} or its .venv; clone the repository to a folder of your own"
    if importlib.util.find_spec("ensurepip") is None:
        return f"this Python makes no virtual environments; on Debian and Ubuntu: apt-get install python{version}-venv"
    cache = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache" / "uv").absolute()
    cache = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    need = NEEDED[torch] - sum(file.lstat().st_size for file in VENV.rglob("*")) / 1e9
    remedies = {cache: "use another: UV_CACHE_DIR=FOLDER make setup", ROOT: "move this folder to a larger disk"}
    for place, remedy in remedies.items():
        if (free := shutil.disk_usage(place).free / 1e9) < need:
            return f"{free:.1f} GB are free in {place}, {need:.0f} are needed: make room there, or {remedy}"
    return ""


def install(group: str, torch: str) -> None:
    """Install the packages of a group; for `run`, fairseq and this project, too. Raises CalledProcessError."""
    lock = (ROOT / LOCKS[group]).read_text(encoding="utf-8")
    if not UV.exists() and not shutil.which("uv"):
        print("fetching uv, which installs", flush=True)
        pinned = re.search(PINNED.format("uv"), (ROOT / LOCKS["dev"]).read_text(encoding="utf-8"), re.M)
        pip("--no-deps", "--require-hashes", lock=pinned[0], by=(PYTHON, "-m", "pip", "install", "--quiet"))
    if torch == "cpu" and group == "run":
        print("installing torch without CUDA", flush=True)
        pip("--no-deps", "--torch-backend", "cpu", *re.findall(r"^(?:torch|torchvision)==[^\s;]+", lock, re.M))
        lock = re.sub(PINNED.format(OF_TORCH), "", lock, flags=re.M)
    elif group == "run" and not shutil.which("nvidia-smi"):
        print("no GPU is visible here; for this machine alone, `make setup TORCH=cpu` fetches a tenth", flush=True)
    print(f"installing the packages of {LOCKS[group]}", flush=True)
    pip("--no-deps", "--require-hashes", lock=lock)
    if group == "run":
        fairseq()
        pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
        folders = ("sparse_attention", "repro", "tasks", "scripts")
        subprocess.run([PYTHON, "-m", "compileall", "-q", *folders], cwd=ROOT, check=False)
        # without a compiler, the library says so once and uses plain torch
        subprocess.run([PYTHON, "-m", "sparse_attention.kernels.native"], cwd=ROOT, check=False)


def fairseq() -> None:
    """Install fairseq, without its dependencies and extensions (READTHEDOCS=1), from the first source that has it."""
    print("installing fairseq without its extensions", flush=True)
    bare = ("--no-deps", "--no-build-isolation")  # its setup.py imports torch
    if folder := os.environ.get("FAIRSEQ_WHEEL"):
        wheels = sorted(map(str, Path(folder).glob("*fairseq*.whl")))
        return pip(*bare, wheels[-1]) if wheels else sys.exit(f"setup: FAIRSEQ_WHEEL={folder} has no wheel of fairseq")
    try:
        lock = (ROOT / "requirements-fairseq.lock").read_text(encoding="utf-8")
        pip(*bare, "--no-binary", "fairseq-fixed", "--require-hashes", lock=lock, READTHEDOCS="1")
    except subprocess.CalledProcessError:
        if sys.version_info[:2] > (3, 12):
            sys.exit("setup: fairseq is unavailable; CONTRIBUTING.md says how to install it from FAIRSEQ_WHEEL=FOLDER")
        print("fairseq-fixed is unavailable: installing ve-fairseq", flush=True)
        pip(*bare, "--require-hashes", lock=SECOND)


def pip(*arguments: str, lock: str = "", by: tuple = (), **environment: str) -> None:
    """Install with uv, or `by` another command, with the text `lock` as requirements. Raises CalledProcessError."""
    uv = UV if UV.exists() else shutil.which("uv")
    command = by or (uv, "pip", "install", "--python", PYTHON, "--compile-bytecode", *QUIET)
    # uv ignores pip's settings, so the index and certificates set for pip in the environment are passed on to it
    theirs = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL", "SSL_CERT_FILE": "PIP_CERT"}
    meant = {ours: os.environ[of_pip] for ours, of_pip in theirs.items() if of_pip in os.environ}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        print(lock, file=file, flush=True)
        given = [*command, *arguments, *(("-r", file.name) if lock else ())]
        subprocess.run(given, env={**meant, **os.environ, **environment}, check=True, close_fds=False)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    try:
        lock(sys.argv[2:]) if sys.argv[1:2] == ["lock"] else main(["run", *sys.argv[1:]])
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run `make setup` again to finish", file=sys.stderr)
        sys.exit(130)
    except subprocess.CalledProcessError:
        index = "if no index can be reached, name a proxy (HTTPS_PROXY=ADDRESS) or an index (PIP_INDEX_URL=ADDRESS)"
        sys.exit(f"setup: this step failed, for the reason above; {index}; then run `make setup` again")
