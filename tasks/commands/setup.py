"""`make setup`: check the machine, build .venv and install packages into it. Needs only Python's standard library."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV, LOCK, FAIRSEQ = ROOT / ".venv", ROOT / "requirements.lock", ROOT / "requirements-fairseq.lock"
PYTHON, STAMP = VENV / "bin" / "python", VENV / ".installed"
OLDEST, NEWEST = (3, 11), (3, 14)
UNFINISHED = "unfinished"
NEEDED = {"": 10, "cpu": 4}  # GB of free disk needed for each value of TORCH
HEAD = "# The exact set of packages, with hashes, for every platform; made by `make lock`, installed by `make setup`.\n"
OF_TORCH = re.compile(r"torch|torchvision|triton|nvidia-.*|cuda-.*")  # packages that another torch replaces


def main() -> int:
    """Build .venv if it is incomplete or out of date. Returns the exit status, 0 if .venv is complete."""
    try:
        torch = os.environ.get("TORCH") or stamp()[0]
        if complete(torch):
            return 0
        with alone():
            return 0 if complete(torch) else build(torch)
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run `make setup` again to finish", file=sys.stderr)
        return 130


@contextlib.contextmanager
def alone():
    """Context manager: wait until no other `make setup` is running in this folder, and hold the lock.

    Child processes inherit the lock, so they keep it if this process is killed.
    """
    descriptor = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another `make setup` in this folder", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # the file system has no locks
    try:
        yield
    finally:
        os.close(descriptor)


def build(torch: str) -> int:
    """Build .venv. Returns the exit status."""
    if trouble := first_trouble(torch):
        print(f"setup: {trouble}", file=sys.stderr)
        return 1
    if slower := without_semaphores():
        print(slower, flush=True)
    anew = not usable()
    if anew:
        print(f"creating .venv with Python {sys.version.split()[0]}", flush=True)
        VENV.unlink() if VENV.is_symlink() else shutil.rmtree(VENV, ignore_errors=True)
        VENV.mkdir(exist_ok=True)
    STAMP.write_text(f"{torch}\n{UNFINISHED}\n", encoding="utf-8")
    if anew and (done := create()):
        return done
    for said, work in steps(torch):
        print(said, flush=True)
        if done := work():
            why = unreachable() or "this step failed, for the reason above"
            print(f"setup: {why}; then run `make setup` again", file=sys.stderr)
            return done
    # if there is no compiler, the library says so once and uses plain torch
    subprocess.run([str(PYTHON), "-m", "sparse_attention.kernels.native"], cwd=ROOT, check=False)
    STAMP.write_text(f"{torch}\n{signature()}\n", encoding="utf-8")
    return 0


# ---- the state of .venv


def stamp() -> tuple[str, str]:
    """The value of TORCH with which .venv was built, and the signature of what it was built from."""
    try:
        torch, made, *_ = STAMP.read_text(encoding="utf-8").split("\n")
        return torch, made
    except (OSError, ValueError):
        return "", UNFINISHED


def complete(torch: str) -> bool:
    """True if .venv was built completely from the current files, in this folder, and still starts."""
    return stamp() == (torch, signature()) and healthy()


def usable() -> bool:
    """True if .venv can be updated instead of rebuilt.

    After an interrupted set-up it cannot, since packages may look installed while files are missing.
    """
    return stamp()[1] != UNFINISHED and healthy()


def signature() -> str:
    """A hash of everything on which .venv depends."""
    files = [path.read_bytes() for path in (ROOT / "pyproject.toml", LOCK, FAIRSEQ)]
    resolved = b"resolved" if os.environ.get("LOCKED") == "0" else b""
    return hashlib.sha256(b"\0".join([*files, str(ROOT).encode(), resolved])).hexdigest()


def healthy() -> bool:
    """True if .venv is in its original place, its interpreter starts, pip is installed, and there is no fairseq from
    earlier versions of this project."""
    asked = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('purelib'), sep='\\n')"
    try:
        command = [str(PYTHON), "-c", asked]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        made = (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, subprocess.SubprocessError):
        return False
    prefix, packages = Path(told[0]), Path(told[1])
    here = f" {VENV.resolve()}\n" in made  # otherwise its scripts start an interpreter elsewhere
    return prefix == VENV and here and (packages / "pip").is_dir() and not list(packages.glob("ve_fairseq-*"))


# ---- problems that prevent the build


def first_trouble(torch: str) -> str:
    """Why .venv cannot be built here and which command to run next; an empty string if it can be built."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        return f"Python {wanted} is needed, this is {sys.version.split()[0]}; name one: make setup PYTHON=/path/to/python3.13"
    if torch not in NEEDED:
        return f"TORCH={torch} is unknown; there is TORCH=cpu, or none for the torch of requirements.lock"
    if (
        torch == "cpu"
        and not os.environ.get("TORCH_INDEX")
        and not (any(VENV.glob("lib/*/site-packages/torch-*.dist-info")) and usable())
    ):
        return (
            "TORCH=cpu needs TORCH_INDEX=ADDRESS, the index of torch's CPU wheels (docs/start/install.md says where torch names it); "
            "for torch with CUDA run `make clean` first"
        )
    if not os.access(ROOT, os.W_OK):
        return f"{ROOT} cannot be written by this user; clone the repository to a folder of your own"
    if VENV.exists() and not os.access(VENV, os.W_OK):
        return f"{VENV} belongs to another user: remove it as that user (rm -rf .venv), then run `make setup` again"
    if not usable() and importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"this Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python{version}-venv"
        )
    need = NEEDED[torch] - sum(file.lstat().st_size for file in VENV.rglob("*")) / 1e9
    for place, what, elsewhere in (
        (ROOT, ".venv", "move this folder to a larger disk"),
        (_cache(), "fetched packages", "keep them on a larger disk: UV_CACHE_DIR=FOLDER make setup"),
    ):
        free = shutil.disk_usage(place).free / 1e9
        if free < need:
            smaller = "" if torch else f" (without a GPU, TORCH=cpu needs {NEEDED['cpu']}: docs/start/install.md)"
            return f"{free:.1f} GB are free in {place}, {need:.0f} are needed for {what}: make room there, or {elsewhere}{smaller}"
    return ""


def without_semaphores() -> str:
    """What is slower here if processes cannot share semaphores, and the remedy; an empty string if they can."""
    import multiprocessing

    try:
        multiprocessing.Lock()
    except (OSError, ImportError) as error:
        remedy = "; as root: mount -t tmpfs tmpfs /dev/shm" if sys.platform == "linux" else ""
        return f"no semaphores here ({error}): everything works, but one process encodes the data{remedy}"
    return ""


def unreachable() -> str:
    """A message if the package index (or the proxy in front of it) does not answer; an empty string if it does."""
    asked = "from pip._internal.commands import create_command as c"
    asked += "; print(c('install').parser.parse_args([])[0].index_url)"  # pip's own settings
    told = subprocess.run([str(PYTHON), "-c", asked], capture_output=True, text=True, check=False).stdout
    place = urllib.parse.urlsplit(os.environ.get("UV_DEFAULT_INDEX") or told.strip())
    proxy = urllib.request.getproxies().get(place.scheme)
    if proxy and place.hostname and not urllib.request.proxy_bypass(place.hostname):
        place = urllib.parse.urlsplit(proxy)
    if not place.hostname:
        return ""
    try:
        socket.create_connection(
            (place.hostname, place.port or (80 if place.scheme == "http" else 443)), timeout=10
        ).close()
    except OSError as error:
        return (
            f"{place.hostname} cannot be reached ({error}): connect this machine to the network, "
            "or name a proxy (HTTPS_PROXY=ADDRESS) or another index (PIP_INDEX_URL=ADDRESS)"
        )
    return ""


def _cache() -> Path:
    """The folder where uv caches downloads, or its nearest existing parent."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("UV_CACHE_DIR") or Path(base) / "uv").absolute()
    return next(f for f in (folder, *folder.parents) if f.is_dir())


# ---- the steps of the build


def create() -> int:
    import venv  # Debian's smallest Python lacks it

    try:
        venv.create(VENV, with_pip=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "output", None) or b"").decode(errors="replace")[-300:] or error
        print(f"setup: .venv cannot be created: {said}", file=sys.stderr)
        return 1
    return 0


def steps(torch: str) -> list:
    """The steps of the build in order, as pairs (message, function); a function returns an exit status."""
    lines = blocks(LOCK.read_text(encoding="utf-8"))
    found = [("fetching uv, which installs", lambda: get_uv(lines))]
    if torch == "cpu":
        named = [re.split(r"[ \\;]", lines[name])[0] for name in ("torch", "torchvision")]
        lines = {name: text for name, text in lines.items() if not OF_TORCH.fullmatch(name)}
        if address := os.environ.get("TORCH_INDEX"):
            found.append(
                ("installing torch without CUDA", lambda: install("--no-deps", "--index-url", address, *named))
            )
    if os.environ.get("LOCKED") == "0":
        found.append(("resolving pyproject.toml", lambda: install("--upgrade", "-e", f"{ROOT}[repro,dev]")))
    else:
        much = "" if torch else " (3 GB to fetch where nothing is cached, most of it torch with CUDA)"
        rest = "\n".join(lines.values())
        found.append(
            (
                f"installing {len(lines)} packages{much}",
                lambda: install("--no-deps", "--require-hashes", requirements=rest),
            )
        )
    found.append(("building fairseq without its extensions", fairseq))
    found.append(("installing this project", lambda: install("--no-deps", "--no-build-isolation", "-e", str(ROOT))))
    return found


def lock() -> int:
    """Write requirements.lock with uv. Returns the exit status."""
    asked = ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header"]
    # fewest: if possible, one version of a package for all Pythons, so that results do not depend on the Python version
    asked += ["--fork-strategy", "fewest", "--python-version", ".".join(map(str, OLDEST)), "--upgrade"]
    made = subprocess.run(
        [str(_uv()), "pip", "compile", "--quiet", *asked, "--extra", "repro", "--extra", "dev", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        print(made.stderr, file=sys.stderr)
        return 1
    LOCK.write_text(HEAD + made.stdout, encoding="utf-8")
    print(f"requirements.lock: {len(blocks(made.stdout))} packages")
    return 0


def blocks(lock: str) -> dict:
    """Name -> requirement with its hashes; a package with different versions for different platforms keeps them all."""
    found: dict = {}
    for text in re.findall(r"^[\w.-]+==(?:.*\\\n)*.*", lock, re.M):
        name = re.sub("[-_.]+", "-", text.partition("==")[0]).lower()
        found[name] = f"{found[name]}\n{text}" if name in found else text
    return found


def get_uv(lines: dict) -> int:
    """Install uv at its locked version; if that fails, the slower pip is used instead. Returns the exit status."""
    if _uv().exists() or _pip("--quiet", "--no-deps", "--require-hashes", requirements=lines["uv"]) == 0:
        return 0
    if unreachable():
        return 1
    print("uv is unavailable here: pip installs instead, more slowly", flush=True)
    return 0


def _uv() -> Path:
    return VENV / "bin" / "uv"


def fairseq() -> int:
    """Build and install fairseq without its extensions. Returns the exit status.

    Its setup.py skips the extensions if READTHEDOCS is set. It imports torch, so it must be built in this environment.
    """
    return install(
        "--no-deps", "--no-build-isolation", "--no-binary", "fairseq-fixed", "--require-hashes",
        requirements=FAIRSEQ.read_text(encoding="utf-8"), READTHEDOCS="1",
    )  # fmt: skip


def install(*arguments: str, requirements: str = "", **environment: str) -> int:
    """Install with uv, or with pip if uv is missing or fails (e.g. for an index that only pip knows).

    Returns the exit status.
    """
    if (
        _uv().exists()
        and _run([str(_uv()), "pip", "install", "--python", str(PYTHON)], arguments, requirements, environment) == 0
    ):
        return 0
    if unreachable():
        return 1
    return _pip(*arguments, requirements=requirements, **environment)


def _pip(*arguments: str, requirements: str = "", **environment: str) -> int:
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    return _run(command, arguments, requirements, environment)


def _run(command: list, arguments: tuple, requirements: str, environment: dict) -> int:
    # uv ignores pip's settings, so the index and certificates set for pip in the environment are passed on to it
    theirs = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL", "SSL_CERT_FILE": "PIP_CERT"}
    meant = {ours: os.environ[of_pip] for ours, of_pip in theirs.items() if of_pip in os.environ}
    with tempfile.TemporaryDirectory() as folder:
        given = list(arguments)
        if requirements:
            file = Path(folder) / "requirements.txt"
            file.write_text(requirements + "\n", encoding="utf-8")
            given += ["-r", str(file)]
        variables = {**meant, **os.environ, **environment}
        return subprocess.run(command + given, env=variables, check=False, close_fds=False).returncode
