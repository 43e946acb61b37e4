"""Runs mutants: one forked process each, from a parent that has torch loaded, in a copy of the tree that nothing else reads."""

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import mutation
from mutation import Mutant, Nearest

LOADED = ("torch", "numpy", "scipy.optimize", "scipy.stats", "sklearn.linear_model", "hydra", "omegaconf", "fairseq")
LOADED += ("sacrebleu", "rouge_score.rouge_scorer", "cvxpy", "hypothesis", "matplotlib.pyplot", "pytest")
FILES = 12  # test files asked of a mutant, the nearest
LIMIT = 60  # seconds of processor time after which a run is ended inside a test, and a mutant is not tried again
GOAL = 0.85  # of the mutants, killed
STUCK = 600  # seconds after which tests that only wait are given up


def load() -> None:
    """Import once what every test imports; none of our own modules."""
    for name in LOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    logging.root.handlers.clear()  # fairseq asks for every message
    logging.root.setLevel(logging.WARNING)


def copied(root: Path, folder: Path) -> Path:
    """A clone of the tree as it stands, changes included; compiled so that a source is read again when its text changes."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", "--shared", str(root), str(folder)], check=True)
    asked = ["git", "-C", str(root), "ls-files", "-z", "--modified", "--others", "--deleted", "--exclude-standard"]
    for name in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_file():
            shutil.copy(root / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    (folder / ".venv").symlink_to(root / ".venv")
    with (folder / "CHANGELOG.md").open("a") as file:
        file.write("\n")  # a checkout with changes already: no test tells a mutant by that alone
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, *mutation.PRODUCT], cwd=folder, check=False)
    return folder


class _Watch:
    """A pytest plugin: notes the test that runs and the first that fails; stops between tests when the processor time is used up."""

    def __init__(self, report: Path, seconds: float):
        self.report, self.seconds = report, seconds

    def note(self, **facts) -> None:
        with self.report.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note(started=nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.note(failed=report.nodeid)

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_protocol(self, item) -> None:
        if sum(os.times()[:4]) > self.seconds:  # of processes that it started too
            item.session.shouldstop = "the time is used up"


class Worker:
    """Runs tests in its own copy of the tree."""

    def __init__(self, root: Path, folder: Path, seconds: float, tests: Nearest):
        self.tree, self.seconds, self.tests = folder / "tree", seconds, tests
        self.report, self.log, self.root = folder / "report", folder / "log", root
        self.clean: dict[str, bool] = {}  # does a test pass on the tree as it is?

    def _child(self, asked: list[str]) -> None:
        import pytest

        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT,) * 2)
        out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.chdir(self.tree)
        sys.dont_write_bytecode = True
        kept = [p for p in sys.path if (p and not Path(p).is_relative_to(self.root)) or ".venv" in p]
        sys.path[:] = [str(self.tree), *kept]
        os.environ |= {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        unfit = [f"--deselect={test}" for test, passed in self.clean.items() if not passed]
        arguments = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", *unfit, *asked]
        os._exit(int(pytest.main(arguments, plugins=[_Watch(self.report, self.seconds)])))

    def run(self, asked: list[str]) -> tuple[str, str]:
        """("passed" | "failed" | "timed out", the test)."""
        self.report.write_text("")
        child = os.fork()
        if not child:
            try:
                self._child(asked)
            finally:
                os._exit(3)
        end, code = time.monotonic() + STUCK, None
        while code is None and time.monotonic() < end:
            found, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started goes as well
        if code is None:
            os.waitpid(child, 0)
        late = code is None or code in (-signal.SIGXCPU, -signal.SIGKILL)
        notes = [json.loads(line) for line in self.report.read_text().splitlines()]
        failed = [n["failed"] for n in notes if "failed" in n]
        last = next((n["started"] for n in reversed(notes) if "started" in n), "")
        if late:
            return "timed out", last
        if failed or code not in (0, 2, 5):  # 2: the time is used up
            return "failed", (failed or [last])[0] or asked[0]
        return "passed", last

    def tried(self, mutant: Mutant) -> dict:
        """What the nearest tests say to a mutant; a test that does not pass without it is not asked again."""
        file, asked = self.tree / mutant.path, self.tests.of(mutant.path)[:FILES]
        source, began = file.read_text(encoding="utf-8"), time.monotonic()
        outcome, by = ("passed", "") if asked else ("no test", "")
        end = used() + LIMIT
        while asked and used() < end:
            try:
                file.write_text(mutant.applied(source), encoding="utf-8")
                outcome, by = self.run(asked)
            finally:
                file.write_text(source, encoding="utf-8")
            if outcome == "passed" or self.clean.get(by):
                break
            self.clean[by] = self.run([by])[0] == "passed"
            if self.clean[by]:
                break
            outcome = "passed"  # by the tests that can tell
        state = {"passed": "survived", "no test": "survived", "failed": "killed"}.get(outcome, "timed out")
        seconds = round(time.monotonic() - began, 1)
        return {"key": mutant.key, "line": mutant.line, "state": state, "by": by, "seconds": seconds}


def used() -> float:
    """Processor time of the processes that have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def read(record: Path) -> dict[str, dict]:
    """Mutant -> its last result."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return {found["key"]: found for found in map(json.loads, lines)}


def run(root: Path, folder: Path, seconds: float, workers: int, given: list[Mutant], record: Path) -> None:
    """Try mutants in so many processes, each with its own copy of the tree; returns when all are done."""
    load()
    tests, children = Nearest(root), []
    tests.imports, tests.rarity  # noqa: B018  read once, before there are several processes
    for number in range(workers):
        place = folder / f"worker{number}"
        place.mkdir(parents=True, exist_ok=True)
        if number:
            shutil.rmtree(place / "tree", ignore_errors=True)
            shutil.copytree(folder / "worker0" / "tree", place / "tree", symlinks=True)
        else:
            copied(root, place / "tree")
    for number in range(workers):
        children.append(os.fork())
        if not children[-1]:
            work(Worker(root, folder / f"worker{number}", seconds, tests), given[number::workers], record)
    for child in children:
        os.waitpid(child, 0)


def work(worker: Worker, given: list[Mutant], record: Path) -> None:
    """Try each mutant and append its result; ends the process."""
    code = 1
    try:
        for count, mutant in enumerate(given, 1):
            result = worker.tried(mutant)
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            place = f"{mutant.path}:{mutant.line}"
            print(f"{count}/{len(given)} {result['state']} {result['seconds']} s  {place}  {result['by']}", flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def tried(root: Path, seed: int, n: int, workers: int, seconds: float, only: str, folder: Path) -> int:
    """`tests/mutants.py`: run a sample and print what became of it; exit status 1 below GOAL."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"seed{seed}.jsonl"
    chosen, known = mutation.sample(root, n, seed, only), mutation.equivalent(root)
    counted = [m for m in chosen if m.key not in known]
    results = read(record)
    left = [m for m in counted if results.get(m.key, {}).get("state", "survived") == "survived"]
    run(root, folder, seconds, workers, left, record)
    results = read(record)
    done = [(m, results[m.key]) for m in counted if m.key in results]
    for mutant, result in sorted(done, key=lambda pair: (pair[1]["state"], pair[0].path, pair[0].line)):
        said = f"{mutant.path}:{mutant.line}  {mutant.before}  ->  {mutant.after}"
        print(f"{result['state']:9}  {said}{result['by'] and '  by ' + result['by']}")
    killed = sum(result["state"] != "survived" for _, result in done)
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.1%}); {len(chosen) - len(counted)} equivalent")
    (folder / f"seed{seed}.json").write_text(json.dumps([result for _, result in done], indent=1))
    print("next: a test for each survivor, then the same command again")
    return int(killed < GOAL * len(done))
