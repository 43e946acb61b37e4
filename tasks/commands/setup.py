"""What `make setup` does: check the machine, build .venv, install into it. Needs nothing but Python's own library."""

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
NEEDED = {"": 10, "cpu": 4}  # GB of free disk, by TORCH
HEAD = "# The exact set of packages, with hashes, for every platform; made by `make lock`, installed by `make setup`.\n"
OF_TORCH = re.compile(r"torch|torchvision|triton|nvidia-.*|cuda-.*")  # what another torch replaces


def main() -> int:
    """Exit status: 0 when .venv is complete."""
    try:
        torch = os.environ.get("TORCH") or _chosen()
        if complete(torch):
            return 0
        with alone():
            return 0 if complete(torch) else build(torch)
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run `make setup` again to finish", file=sys.stderr)
        return 130


@contextlib.contextmanager
def alone():
    """Wait until no other `make setup` builds here; what this one starts keeps the lock should this process be killed."""
    descriptor = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another `make setup` in this folder", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(descriptor)


def build(torch: str) -> int:
    """Exit status."""
    if trouble := first_trouble(torch):
        print(f"setup: {trouble}", file=sys.stderr)
        return 1
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
    # without a compiler the library says so once, and uses plain torch
    subprocess.run([str(PYTHON), "-m", "sparse_attention.kernels.native"], cwd=ROOT, check=False)
    STAMP.write_text(f"{torch}\n{signature()}\n", encoding="utf-8")
    return 0


# ---- what is there


def complete(torch: str) -> bool:
    """Whether .venv was built to its end from today's files, at this place, and still starts."""
    try:
        return STAMP.read_text(encoding="utf-8").split("\n")[:2] == [torch, signature()] and healthy()
    except OSError:
        return False


def usable() -> bool:
    """Whether .venv can be brought up to date: an interrupted set-up leaves packages that look installed and miss files."""
    try:
        return UNFINISHED not in STAMP.read_text(encoding="utf-8") and healthy()
    except OSError:
        return False


def signature() -> str:
    """A hash of everything that .venv depends on."""
    files = [path.read_bytes() for path in (ROOT / "pyproject.toml", LOCK, FAIRSEQ)]
    return hashlib.sha256(b"\0".join([*files, str(ROOT).encode(), _resolves().encode()])).hexdigest()


def healthy() -> bool:
    """Whether .venv's interpreter starts, with pip, at this place, and has no fairseq of earlier versions of this project."""
    asked = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('purelib'), sep='\\n')"
    try:
        command = [str(PYTHON), "-c", asked]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        made = (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    except (OSError, subprocess.SubprocessError):
        return False
    prefix, packages = Path(told[0]), Path(told[1])
    here = f" {VENV.resolve()}\n" in made  # else the first lines of its scripts name an interpreter elsewhere
    return prefix == VENV and here and (packages / "pip").is_dir() and not list(packages.glob("ve_fairseq-*"))


def _chosen() -> str:
    """The TORCH that .venv was built with."""
    try:
        return STAMP.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""


def _resolves() -> str:
    return "resolved" if os.environ.get("LOCKED") == "0" else ""


# ---- what prevents it


def first_trouble(torch: str) -> str:
    """Why .venv cannot be built here, and the next command; empty: it can."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        return f"Python {wanted} is needed, this is {sys.version.split()[0]}; name one: make setup PYTHON=/path/to/python3.13"
    if torch not in NEEDED:
        return f"TORCH={torch} is unknown; there is TORCH=cpu, or none for the torch of requirements.lock"
    if torch == "cpu" and not os.environ.get("TORCH_INDEX") and not (_has_torch() and usable()):
        return (
            "TORCH=cpu needs TORCH_INDEX=ADDRESS, the index of torch's CPU wheels (docs/install.md says where torch names it); "
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
    need = NEEDED[torch] - _gigabytes(VENV)
    for place, what, elsewhere in (
        (ROOT, ".venv", "move this folder to a larger disk"),
        (_cache(), "fetched packages", "keep them on a larger disk: UV_CACHE_DIR=FOLDER make setup"),
    ):
        free = shutil.disk_usage(place).free / 1e9
        if free < need:
            smaller = "" if torch else f" (without a GPU, TORCH=cpu needs {NEEDED['cpu']}: docs/install.md)"
            return f"{free:.1f} GB are free in {place}, {need:.0f} are needed for {what}: make room there, or {elsewhere}{smaller}"
    return ""


def unreachable() -> str:
    """That the package index (or the proxy before it) does not answer, and what to do; empty: it does."""
    asked = "from pip._internal.commands import create_command as c"
    asked += "; print(c('install').parser.parse_args([])[0].index_url)"  # with its settings and its own default
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


def _has_torch() -> bool:
    return any(VENV.glob("lib/*/site-packages/torch-*.dist-info"))


def _gigabytes(folder: Path) -> float:
    return sum(f.lstat().st_size for f in folder.rglob("*")) / 1e9 if folder.is_dir() else 0.0


def _cache() -> Path:
    """The nearest existing folder above the one where uv keeps what it fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("UV_CACHE_DIR") or Path(base) / "uv").absolute()
    return next(f for f in (folder, *folder.parents) if f.is_dir())


# ---- the work


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
    """What to say and what to do, in order."""
    lines = blocks(LOCK.read_text(encoding="utf-8"))
    found = [("fetching uv, which installs", lambda: get_uv(lines))]
    if torch == "cpu":
        wanted = [re.split(r"[ \\;]", lines[name])[0] for name in ("torch", "torchvision")]
        lines = {name: text for name, text in lines.items() if not OF_TORCH.fullmatch(name)}
        if address := os.environ.get("TORCH_INDEX"):
            found.append(
                ("installing torch without CUDA", lambda: install("--no-deps", "--index-url", address, *wanted))
            )
    if _resolves():
        found.append(("resolving pyproject.toml", lambda: install("--upgrade", "-e", f"{ROOT}[repro,dev]")))
    else:
        said = f"installing {len(lines)} packages (3 GB to fetch where nothing is cached, most of it torch with CUDA)"
        found.append(
            (said if torch != "cpu" else f"installing {len(lines)} packages", lambda: locked("\n".join(lines.values())))
        )
    found.append(("building fairseq without its extensions", fairseq))
    found.append(("installing this project", lambda: install("--no-deps", "--no-build-isolation", "-e", str(ROOT))))
    return found


def lock() -> int:
    """Write requirements.lock with uv; the exit status."""
    asked = ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header"]
    # fewest: one version of a package for all Pythons if possible, so that numbers do not depend on the Python
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
    """Name -> requirement with its hashes; a package with two versions, for two kinds of machine, keeps both."""
    found: dict = {}
    for text in re.findall(r"^[\w.-]+==(?:.*\\\n)*.*", lock, re.M):
        name = re.sub("[-_.]+", "-", text.partition("==")[0]).lower()
        found[name] = f"{found[name]}\n{text}" if name in found else text
    return found


def get_uv(lines: dict) -> int:
    """uv at its locked version; without one pip does the work, slower."""
    if _uv().exists() or _pip("--quiet", "--no-deps", "--require-hashes", requirements=lines["uv"]) == 0:
        return 0
    if unreachable():
        return 1
    print("uv is unavailable here: pip installs instead, more slowly", flush=True)
    return 0


def _uv() -> Path:
    return VENV / "bin" / "uv"


def locked(requirements: str) -> int:
    return install("--no-deps", "--require-hashes", requirements=requirements)


def fairseq() -> int:
    """Its setup.py leaves the extensions out for READTHEDOCS; it imports torch, so it is built in this environment."""
    return install(
        "--no-deps", "--no-build-isolation", "--no-binary", "fairseq-fixed", "--require-hashes",
        requirements=FAIRSEQ.read_text(encoding="utf-8"), READTHEDOCS="1",
    )  # fmt: skip


def install(*arguments: str, requirements: str = "", **environment: str) -> int:
    """The exit status of uv, and where uv is not there or fails (an index that only pip knows), of pip."""
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
    # uv reads none of pip's settings: an index and certificates that the environment names for pip are meant for it too
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
