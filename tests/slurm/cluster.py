"""A Slurm of one node on this machine, for as long as a test: munged, slurmctld and slurmd in a folder of their own.

Debian's packages slurm-wlm and munge; root, for slurmd. SlurmUser is root, processes are tracked through /proc, munged runs as
its own user: no cgroups, no systemd, no account in a database.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey", "runuser")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=60 State=UP
"""


class Unavailable(Exception):
    """Why there can be no cluster here."""


def install() -> None:
    """The packages, when they are missing and may be installed. Raises `Unavailable`."""
    if os.geteuid() != 0:
        raise Unavailable("slurmd needs root")
    if not missing():
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing())} are not installed, and there is no apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", *command], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise Unavailable(f"apt-get {command[0]} failed: {done.stderr.strip()[-200:]}")
    if missing():
        raise Unavailable(f"{', '.join(missing())} are missing from {', '.join(PACKAGES)}")


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextlib.contextmanager
def running(folder: Path, cpus: int = 4) -> Iterator[dict[str, str]]:
    """A cluster whose node has `cpus` CPUs, more than there are if need be; its environment. Raises `Unavailable`."""
    install()
    folder.chmod(0o755)
    for parent in folder.parents:  # munged looks whether others could replace its files
        with contextlib.suppress(PermissionError):
            parent.chmod(parent.stat().st_mode | 0o011) if parent.stat().st_mode & 0o077 == 0 else None
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    page, given = folder / "slurm.conf", {"host": host, "folder": folder, "cpus": cpus, "memory": memory}
    page.write_text(CONFIGURATION.format(**given, ctld=_port(), slurmd=_port()))
    environment = os.environ | {"SLURM_CONF": str(page)}
    started: list[subprocess.Popen] = []
    try:
        started.append(_munged(folder / "munge"))
        for name in ("slurmctld", "slurmd"):
            with (folder / f"{name}.out").open("w") as out:
                given = {"env": environment, "stdout": out, "stderr": out, "start_new_session": True}
                started.append(subprocess.Popen([name, "-D"], **given))
        _until_idle(environment, folder)
        yield environment
    finally:
        for more in (["--signal=KILL", "--full"], []):
            subprocess.run(["scancel", "-u", "root", *more], env=environment, capture_output=True, check=False)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _munged(folder: Path) -> subprocess.Popen:
    subprocess.run(["mungekey", "--create", f"--keyfile={folder}/key"], check=True)
    subprocess.run(["chown", "-R", "munge", str(folder)], check=True)
    folder.chmod(0o755)
    files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    command = ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force", *options]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, start_new_session=True, **silent)
    for _ in range(100):
        if (folder / "socket").exists():
            return process
        time.sleep(0.1)
    log = folder / "log"
    raise Unavailable(f"munged did not start: {log.read_text() if log.exists() else 'no log'}")


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _until_idle(environment: dict[str, str], folder: Path) -> None:
    for _ in range(150):
        told = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False)
        if told.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    logs = "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("slurm*.log")))
    raise Unavailable(f"the node did not come up ({told.stdout.strip() or told.stderr.strip()}):\n{logs}")
