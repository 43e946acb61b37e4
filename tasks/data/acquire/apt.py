"""Text from Debian packages, fetched with a private apt: no root, nothing installed, no files outside the cache.

Every machine reads the same release, `RELEASE`, from the Debian mirror in its own apt sources, so that all machines
train on the same texts; a machine without a Debian mirror or without Debian's keys cannot read it. Our configuration
(`APT_CONFIG`) puts lists, cache and downloads under `root/apt`. The machine's configuration files are not read, because container images use them to disable translations and to delete
files after every update; only network settings (proxies and the like) are copied from them.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import NO_SPACE, locked, publish_file, publish_folder, writing_to
from tasks.data.progress import Progress
from tasks.data.read.formats import check_fields, parse_json, read_text

_CARRIED = re.compile(r"^Acquire::(http|https|ftp|tor|ForceIPv4|ForceIPv6|Check-Valid-Until|Check-Date|By-Hash)\b")
_NO_ROOM = re.compile(r"no space left|not enough free|don't have enough", re.I)
RELEASE = "bookworm"  # its main archive changes with point releases only
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class PrivateApt:
    """A private apt under `root`/apt.

    Args:
        root: cache folder.
        progress: reports slow steps.

    Raises:
        DataError: this machine has no apt-get.
    """

    def __init__(self, root: str | Path, progress: Progress) -> None:
        if shutil.which("apt-get") is None:
            step = "run on Debian or Ubuntu (a container will do), or use another data set (data=NAME)"
            raise DataUnavailable("there is no apt-get on this machine", "PATH", step)
        self.folder = Path(root).resolve() / "apt"
        self.progress = progress
        self._config = self.folder / "apt.conf"

    def update(self) -> str:
        """Fetch the package lists unless they are already present. Returns their date, YYYY-MM-DD.

        Raises DataError if this machine has no Debian mirror or keys, no list could be fetched, or the disk is full.
        """
        stamp = self.folder / "updated.json"
        with locked(self.folder / "lock"):
            if stamp.is_file() and self._lists("Packages"):
                return check_fields(parse_json(read_text(stamp), stamp), {"day": str}, stamp)["day"]
            # Debian's main archive in this machine's own sources
            command = ["apt-get", "indextargets", "--format", "$(SITE) $(COMPONENT)", "Created-By: Packages"]
            told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            mirror = next(iter(re.findall(r"^(\S+/debian/?) main$", told, re.M)), None)
            if not mirror or not KEYRING.exists():
                why = f"there is no {KEYRING}" if mirror else "the apt sources name no Debian mirror"
                step = "run on Debian, install debian-archive-keyring, or use another data set (data=NAME)"
                raise DataUnavailable(f"Debian {RELEASE} cannot be read here", why, step)
            self._write_config(mirror)
            self.progress.say(f"fetching the package lists of Debian {RELEASE} (10-40 MB)")
            log = self._run(["apt-get", "update", "-q"])
            if not self._lists("Packages") or not self._lists("Translation-en"):
                step = "check the network and the proxy (http_proxy, /etc/apt), then run the same command again"
                raise DataUnavailable("apt could not fetch the package lists", _complaint(log), step)
            day = time.strftime("%Y-%m-%d")
            publish_file(stamp, json.dumps({"day": day}))
            return day

    def stanzas(self, kind: str) -> Iterator[str]:
        """Every stanza of the lists of one kind: "Packages" or "Translation-<language>". Call `update` first."""
        for path in self._lists(kind):
            yield from filter(str.strip, read_text(path).split("\n\n"))

    def unpack(self, package: str) -> Path:
        """Download a package and extract its files without installing it.

        Returns the folder with the package's file tree and `PACKAGE_VERSION.txt`, which is reused by later calls.
        Raises DataError if the package is not in the sources or cannot be fetched, or the disk is full.
        """
        folder = self.folder / "unpacked" / package
        with locked(self.folder / f"{package}.lock"):
            if (folder / "PACKAGE_VERSION.txt").is_file():
                return folder
            self.update()
            self.progress.say(f"downloading the package {package}")
            with writing_to(self.folder), TemporaryDirectory(dir=self.folder) as downloads:
                # apt verifies the archive against the signed lists before it puts the file in place
                log = self._run(["apt-get", "download", "-q", package], cwd=Path(downloads))
                debs = sorted(Path(downloads).glob("*.deb"))
                if not debs:
                    step = "check the network, then run the same command again; "
                    step += f"if the lists are old, delete {self.folder / 'updated.json'} first"
                    raise DataUnavailable(f"apt could not download {package}", _complaint(log), step)
                with publish_folder(folder) as temporary:
                    extract_deb(debs[0], temporary)
                    (temporary / "PACKAGE_VERSION.txt").write_text(debs[0].stem + "\n")
        return folder

    def _lists(self, kind: str) -> list[Path]:
        return sorted(path for path in (self.folder / "lists").glob(f"*_{kind}") if path.stat().st_size > 0)

    def _write_config(self, mirror: str) -> None:
        with writing_to(self.folder):
            for name in ("lists/partial", "cache/archives/partial", "parts"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        sources = self.folder / "sources.list"
        publish_file(sources, f"deb [signed-by={KEYRING}] {mirror} {RELEASE} main\n")
        lines = [
            f'Dir::State::lists "{self.folder}/lists";',
            f'Dir::Cache "{self.folder}/cache";',
            f'Dir::Etc::SourceList "{sources}";',
            f'Dir::Etc::SourceParts "{self.folder}/parts";',
            f'Dir::Etc::Parts "{self.folder}/parts";',
            'Dir::Etc::Main "/nonexistent";',
            'Acquire::Languages { "en"; }; Acquire::GzipIndexes "false"; Acquire::Retries "2";',
            'Acquire::http::Timeout "20"; Acquire::https::Timeout "20";',
            'APT::Architecture "amd64"; APT::Architectures { "amd64"; };',  # on every machine, because lists differ
        ]
        if os.geteuid() == 0:
            lines.append('APT::Sandbox::User "root";')  # the unprivileged fetcher cannot write into our folders
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
        lines += [line for line in dump.splitlines() if _CARRIED.match(line) and not line.endswith(' "";')]
        publish_file(self._config, "\n".join(lines) + "\n")

    def _run(self, command: list[str], cwd: Path | None = None) -> str:
        """Run an apt command with our configuration and return its output.

        A full disk raises DataError; callers detect other failures by checking for the files that the command should
        create.
        """
        ours = {"APT_CONFIG": str(self._config), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, cwd=cwd, env=os.environ | ours, check=False, **pipes)
        if done.returncode and _NO_ROOM.search(done.stdout):
            raise DataError("the disk is full", f"{self.folder}: {_complaint(done.stdout)}", NO_SPACE)
        return done.stdout


def extract_deb(deb: Path, folder: Path) -> None:
    """Extract the files of a .deb into `folder` with dpkg-deb. Raises DataError if the file is damaged."""
    done = subprocess.run(["dpkg-deb", "-x", str(deb), str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        step = f"delete {deb} and run the same command again"
        raise DataError(f"{deb.name} is damaged", f"{deb}: {done.stderr.strip()}", step)


def _complaint(log: str) -> str:
    """The first error or warning in apt's output (later lines repeat it for every source), or else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith(("E:", "W:"))]
    return (complaints[0] if complaints else " / ".join(lines[-3:]))[:300]
