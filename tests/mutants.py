"""Mutation testing: change one line of the code at a time and check that a test fails.

    python tests/mutants.py [--seed 1] [--n 200] [--workers 1] [--seconds 40] [--only TEXT] [--output FOLDER]

    --only     mutants whose `file:line` or text contains TEXT           --output   (default outputs/mutants)

Examples: python tests/mutants.py --n 40; python tests/mutants.py --seed 7 --workers 2; python tests/mutants.py --only rouge.py

A mutant is tested with the twelve nearest test files, in a fork of a process that has torch loaded and in a clone of the
repository with the changes that git knows, for up to --seconds of processor time. It is killed if a test hangs, or fails
although it passes without the mutant. Survivors need a new test; a mutant that is equivalent to the original goes into
tests/equivalent_mutants.txt with the reason and is not counted. After an interruption, run the same command to continue;
survivors are tested again. Exit status 1 if fewer than 85 % are killed.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import mutation  # noqa: E402

from tasks.commands.entry import command  # noqa: E402

LOADED = "torch numpy scipy.optimize scipy.stats sklearn.linear_model hydra omegaconf fairseq sacrebleu".split()
LOADED += "rouge_score.rouge_scorer cvxpy hypothesis matplotlib.pyplot pytest".split()  # none of our own modules
FILES = 12  # test files asked of a mutant
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

    def __init__(self, report: Path, seconds: float):
        self.report, self.seconds = report, seconds

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.report.write_text(f"passed {nodeid}")

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.report.write_text(f"killed {report.nodeid}")

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_protocol(self, item) -> None:
        if sum(os.times()[:4]) > self.seconds:  # of processes that it started too
            item.session.shouldstop = "the time is used up"


class Worker:
    """Runs tests in a clone of its own."""

    def __init__(self, folder: Path, seconds: float):
        self.tree, self.report, self.log, self.seconds = folder / "tree", folder / "report", folder / "log", seconds
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
        os._exit(int(pytest.main(arguments, plugins=[Watch(self.report, self.seconds)])))

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

    def work(self, given: list[mutation.Mutant], record: Path) -> None:
        """Try each mutant and append its result."""
        for count, mutant in enumerate(given, 1):
            state, by = self.tried(mutant)
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": mutant.key, "line": mutant.line, "state": state, "by": by}) + "\n")
            print(f"{count}/{len(given)} {state}  {mutant.path}:{mutant.line}  {by}", flush=True)


@command
def main(
    *,
    seed: int = 1,
    n: int = 200,
    workers: int = 1,
    seconds: float = 40.0,
    only: str = "",
    output: Path = ROOT / "outputs/mutants",
) -> int:
    output.mkdir(parents=True, exist_ok=True)
    record = output.resolve() / f"seed{seed}.jsonl"

    def read() -> dict[str, dict]:
        """Mutant -> its last result."""
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        return {found["key"]: found for found in map(json.loads, lines)}

    for name in LOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    logging.root.handlers.clear()  # fairseq asks for every message
    logging.root.setLevel(logging.WARNING)
    chosen, known, results = mutation.sample(ROOT, n, seed, only), mutation.equivalent(ROOT), read()
    counted = [m for m in chosen if m.key not in known]
    left = [m for m in counted if results.get(m.key, {}).get("state", "survived") == "survived"]
    for number in range(workers):
        worker, given = Worker(output.resolve() / f"worker{number}", seconds), left[number::workers]
        multiprocessing.get_context("fork").Process(target=worker.work, args=(given, record)).start()
    for child in multiprocessing.active_children():
        child.join()
    results = read()
    done = [(m, results[m.key]) for m in counted if m.key in results]
    for mutant, result in sorted(done, key=lambda pair: (pair[1]["state"], pair[0].path, pair[0].line)):
        print(f"{result['state']:9}  {mutant.path}:{mutant.line}  {mutant.before}  ->  {mutant.after}  {result['by']}")
    killed = sum(result["state"] != "survived" for _, result in done)
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.1%}); {len(chosen) - len(counted)} equivalent")
    print("next: a test for each survivor, then the same command again")
    return int(killed < GOAL * len(done))
