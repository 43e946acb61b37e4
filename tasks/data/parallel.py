"""Work on batches by several processes, results in order: whatever their number, the same bytes come out."""

from __future__ import annotations

import multiprocessing as mp
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from repro.launch import pool
from tasks.data.errors import DataError

T, R = TypeVar("T"), TypeVar("R")
BATCH = 2000  # records
LEAST = 20_000  # records for which processes are worth starting
_work: Callable[[Any], Any] = repr  # of a worker process


def worth(workers: int, records: int) -> int:
    """How many processes to use for so many records: 1 where they would cost more than they save, or cannot be forked."""
    return workers if records >= LEAST and pool.forks() else 1


def ranges(n: int, size: int = BATCH) -> Iterator[range]:
    """0 .. n-1 in batches."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """The items in lists."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def mapped(work: Callable[[T], R], parts: Iterable[T], workers: int) -> Iterator[R]:
    """`work` of every part, in order. At most four parts a process are under way or wait to be taken.

    Args:
        work: a function; with several processes they inherit it, with all that it holds, as it is at the first part.
        workers: processes; 1: this one alone.

    Raises:
        DataError: a process was killed. What `work` raises.
    """
    if workers == 1:
        yield from map(work, parts)
        return
    executor = ProcessPoolExecutor(workers, mp.get_context("fork"), _begin, (work,))
    try:
        waiting: deque[Future[R]] = deque()
        for part in parts:
            waiting.append(executor.submit(_run, part))
            if len(waiting) == 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that encoded was killed", f"{workers} processes: {error}", "free memory or lower runtime.workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the workers too: they end without a word


def _run(part: Any) -> Any:
    return _work(part)


def chosen(records: Sequence[T], part: range) -> Iterator[T]:
    """The records of a range."""
    return (records[i] for i in part)
