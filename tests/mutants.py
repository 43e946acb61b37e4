"""Mutation testing: change one line of the code at a time and check that a test fails.

    python tests/mutants.py [--seed 1] [--n 200] [--workers 1] [--only TEXT]

`--only` leaves mutants whose `file:line` or text contains TEXT, as in `python tests/mutants.py --only rouge.py`.

A mutant is tested with the twelve nearest test files, in a fork of a process that has torch loaded and in a clone of the
repository with the changes that git knows, for up to 40 seconds of processor time. It is killed if a test hangs, or fails
although it passes without the mutant. Survivors need a new test; a mutant that is equivalent to the original goes into
tests/equivalent_mutants.txt with the reason and is not counted. Exit status 1 if fewer than 85 % are killed.
"""

import contextlib
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import mutation  # noqa: E402

from tasks.commands.entry import command  # noqa: E402

LOADED = "torch numpy scipy.optimize scipy.stats sklearn.linear_model hydra omegaconf fairseq sacrebleu".split()
LOADED += "rouge_score.rouge_scorer cvxpy hypothesis matplotlib.pyplot pytest".split()  # none of our own modules
FILES = 12  # test files asked of a mutant
SECONDS = 40  # of processor time after which no further test begins
LIMIT = 60  # seconds of processor time after which a run is ended inside a test
STUCK = 600  # seconds after which tests that only wait are given up
GOAL = 0.85  # of the mutants, killed


def cloned(folder: Path) -> None:
    """A clone of the tree as it stands; compiled so that a source is read again when its text changes."""
    shutil.rmtree(folder, ignore_errors=True)
    changed = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", changed.strip() or "HEAD"], cwd=folder, check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    with (folder / "CHANGELOG.md").open("a") as file:
        file.write("\n")  # a checkout with changes already: no test tells a mutant by that alone
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, *mutation.PRODUCT], cwd=folder, check=False)


class Watch:
    """A pytest plugin: notes the test that runs or has failed; stops between tests when the processor time is used up."""

    def __init__(self, report: Path):
        self.report = report

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report.write_text(f"passed {nodeid}")

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.report.write_text(f"killed {report.nodeid}")

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_protocol(self, item) -> None:
        if sum(os.times()[:4]) > SECONDS:  # of processes that it started too
            item.session.shouldstop = "the time is used up"


class Worker:
    """Runs tests in a clone of its own."""

    def __init__(self, folder: Path):
        self.tree, self.report, self.log = folder / "tree", folder / "report", folder / "log"
        self.clean: dict[str, bool] = {}  # does a test pass on the tree as it is?
        folder.mkdir(parents=True, exist_ok=True)
        cloned(self.tree)

    def _child(self, asked: list[str]) -> None:
        import pytest

        os.setsid(), signal.alarm(STUCK)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        os.chdir(self.tree)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
            del sys.modules[name]  # of the tree that this process came from
        sys.dont_write_bytecode = True
        sys.path[:] = [str(self.tree), *(p for p in sys.path if ".venv" in p or not Path(p).is_relative_to(ROOT))]
        os.environ |= {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        unfit = [f"--deselect={test}" for test, passed in self.clean.items() if not passed]
        arguments = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", *unfit, *asked]
        os._exit(int(pytest.main(arguments, plugins=[Watch(self.report)])))

    def run(self, asked: list[str]) -> tuple[str, str]:
        """("passed" | "killed" | "timed out", the test)."""
        self.report.write_text(f"passed {asked[0]}")
        if not (child := os.fork()):
            try:
                self._child(asked)
            finally:
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started goes as well
        state, _, test = self.report.read_text().partition(" ")
        if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
            return "timed out", test
        return "passed" if state == "passed" and code in (0, 2, 5) else "killed", test  # 2: the time is used up

    def tried(self, mutant: mutation.Mutant) -> tuple[str, str]:
        """What the nearest tests say to a mutant; a test that does not pass without it is not asked again."""
        file, asked = self.tree / mutant.path, mutation.nearest(ROOT, mutant.path)[:FILES]
        source = file.read_text(encoding="utf-8")
        while True:
            file.write_text(mutant.applied(source), encoding="utf-8")
            try:
                outcome, by = self.run(asked)
            finally:
                file.write_text(source, encoding="utf-8")
            if outcome == "passed":
                return "survived", ""
            if self.clean.setdefault(by, self.clean.get(by) or self.run([by])[0] == "passed"):
                return outcome, by


def work(folder: Path, given: list[mutation.Mutant]) -> list[tuple[str, mutation.Mutant, str]]:
    """What became of each mutant, and by which test."""
    worker, done = Worker(folder), []
    for mutant in given:
        state, by = worker.tried(mutant)
        print(f"{len(done) + 1}/{len(given)} {state}  {mutant.path}:{mutant.line}  {by}", flush=True)
        done.append((state, mutant, by))
    return done


@command
def main(*, seed: int = 1, n: int = 200, workers: int = 1, only: str = "") -> int:
    for name in LOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    logging.root.handlers.clear()  # fairseq asks for every message
    logging.root.setLevel(logging.WARNING)
    chosen, known = mutation.sample(ROOT, n, seed, only), mutation.equivalent(ROOT)
    counted = [m for m in chosen if m.key not in known]
    shares = [(ROOT / f"outputs/mutants/worker{number}", counted[number::workers]) for number in range(workers)]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        done = [result for part in pool.map(work, *zip(*shares)) for result in part]
    for state, mutant, by in sorted(done, key=lambda result: (result[0], result[1].path, result[1].line)):
        print(f"{state:9}  {mutant.path}:{mutant.line}  {mutant.before}  ->  {mutant.after}  {by}")
    killed = sum(state != "survived" for state, *_ in done)
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.1%}); {len(chosen) - len(counted)} equivalent")
    return int(killed < GOAL * len(done))
