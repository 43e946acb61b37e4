"""Run a script in a fork of this process, which has torch and fairseq loaded: starting Python anew would take most of the time."""

import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

import torch

from tasks.fairseq_plugin.compat import detach_config_store

# variables that Python or a library reads once, when it starts
AT_START = ("PYTHON", "SPARSE_ATTENTION_KERNELS", "OMP_", "LD_", "PATH")
TOO_LATE = 99  # status of a child in which autograd refuses to work, because it has started threads in this process


def run(
    script: Path, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout: float, typed: str = ""
) -> subprocess.CompletedProcess:
    """Like `subprocess.run([sys.executable, script, *arguments], input=typed, ...)` with output as text."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(typed.encode()), given.seek(0)
        sys.stdout.flush(), sys.stderr.flush()
        child = os.fork()
        if not child:
            _become(script, arguments, environment, cwd, given.fileno(), out.fileno(), err.fileno())
        status, until = None, time.monotonic() + timeout
        while status is None:
            ended, told = os.waitpid(child, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(told)
            elif time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise subprocess.TimeoutExpired([str(script), *arguments], timeout)
            else:
                time.sleep(0.01)
        if status == TOO_LATE:
            command, told = [sys.executable, str(script), *arguments], {"input": typed, "env": environment, "cwd": cwd}
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **told)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return subprocess.CompletedProcess([str(script), *arguments], status, *texts)


def _become(
    script: Path, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, given: int, out: int, err: int
) -> None:
    """Be the script, in the child; never returns."""
    status = 1
    try:
        torch.ones(1, requires_grad=True).backward()
    except RuntimeError:
        os._exit(TOO_LATE)
    try:
        os.dup2(given, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode, encoding="utf-8") for i, mode in enumerate("rww"))
        sys.stderr.reconfigure(line_buffering=True)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        os.chdir(cwd)
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        sys.argv[:] = [str(script), *arguments]
        sys.path.insert(0, str(script.parent))
        for name in [name for name in sys.modules if name.startswith("_entry")]:
            del sys.modules[name]
        forkserver._forkserver.__init__()  # that of the parent is no child of this process
        logging.disable(logging.NOTSET)  # what earlier tests and Hydra have done to logging
        logging.root.handlers.clear()
        for handler in (found() for found in logging._handlerList):
            if type(handler) is logging.StreamHandler:  # of a library, with standard error as it was at its import
                handler.stream = sys.stderr
        for logger in logging.root.manager.loggerDict.values():
            logger.disabled = False  # type: ignore[union-attr]
        logging.root.manager.loggerDict.clear()  # Hydra disables those that exist when it starts
        detach_config_store()
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                status = status or 120
        os._exit(status)
