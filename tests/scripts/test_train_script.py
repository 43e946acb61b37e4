"""The entry points as a user calls them: a process of their own, real arguments, exit status and what is printed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path


def cells(outputs: Path) -> set[Path]:
    """The folders of all finished cells."""
    return {path.parent for path in outputs.glob("cells/toy/*/*/manifest.json")}


def test_one_cell_and_again(train, outputs):
    done = train("mapping=sparsemax")
    assert done.returncode == 0, done.stderr
    assert re.search(r"sparsemax\(gamma=1\.0\) on toy, seed 1", done.stdout)
    assert re.search(r"^  mapping +test/bleu .* zeros$", done.stdout, re.M)
    folder = Path(re.search(r"cell \w+ done: (\S+)", done.stdout).group(1))
    assert folder in cells(outputs) and not (folder / "claim").read_bytes()
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    again = train("mapping=sparsemax", "runtime.workers=1")
    assert again.returncode == 0 and "skipped" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before
    shown = [re.findall(r"^  (sparsemax|baseline: ).*\d$", d.stdout, re.M) for d in (done, again)]
    assert shown[0] == shown[1] and len(shown[0]) >= 1


def test_control_c_ends_with_a_sentence(tiny, root, outputs, isolated):
    """And with the status of an interrupt; what was done is not lost."""
    asked = [*tiny, "train.max_epochs=5000", f"paths.outputs={outputs}"]
    command = [sys.executable, str(root / "scripts" / "train.py"), *asked]
    env = os.environ | {"SPARSE_ATTENTION_DATA": str(isolated / "data")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=outputs)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not [*outputs.glob("cells/toy/softmax/*/curves.csv")]:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err and err.strip().splitlines()[-1].startswith("stopped;")


def test_configuration_can_be_shown_without_running(train, outputs):
    before = cells(outputs)
    done = train("mapping=oscarmax", "--cfg", "job")
    assert done.returncode == 0 and "name: oscarmax" in done.stdout
    assert cells(outputs) == before
