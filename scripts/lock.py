"""Write requirements.lock (to run everything) and requirements-dev.lock (additional packages for developers) with uv.

Both come from one resolution of pyproject.toml for Python 3.11 to 3.14 on Linux and macOS, with hashes. Options go to uv:
`--upgrade` takes the newest versions, `--upgrade-package NAME` that of one package; otherwise, versions stay if they can.
"""

import re
import subprocess

from _entry import ROOT, command

LOCKS, KNOWN = [ROOT / "requirements.lock", ROOT / "requirements-dev.lock"], ROOT / ".venv" / "known.txt"
HEAD = "# What {} needs, with hashes, for every platform; made by `make lock`, installed by `make setup`.\n"
# fewest: if possible, one version of a package for all Pythons, so that results do not depend on the Python version
ASKED = "--quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --fork-strategy fewest"


def resolved(*asked: str) -> dict[str, str]:
    """Name -> requirement with its hashes. uv keeps the versions that its output file has."""
    command = [ROOT / ".venv" / "bin" / "uv", "pip", "compile", *ASKED.split(), "--python-version", "3.11", "-o", KNOWN]
    subprocess.run([*command, *asked, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, str] = {}  # a package with different versions for different platforms keeps them all
    for text in re.findall(r"^[\w.-]+==(?:.*\\\n)*.*\n", KNOWN.read_text(), re.M):
        found[name] = found.get(name := text.partition("==")[0], "") + text
    return found


@command
def main(arguments: list[str]) -> None:
    KNOWN.write_text("".join(lock.read_text() for lock in LOCKS if lock.is_file()))
    all_of = resolved("--group", "dev", "--extra", "transformers", "--extra", "onnx", *arguments)
    run = resolved("--group", "run").keys()
    for lock, what, names in ((LOCKS[0], "running", run), (LOCKS[1], "developing", all_of.keys() - run)):
        lock.write_text(HEAD.format(what) + "".join(text for name, text in all_of.items() if name in names))
        print(f"{lock.name}: {len(names)} packages")
