"""Process batches in several processes, with results in order. The number of processes does not change the output."""

import multiprocessing as mp
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from repro.launch import pool
from tasks.data.errors import DataError

T, R = TypeVar("T"), TypeVar("R")
BATCH = 2000  # records
LEAST = 20_000  # records; with fewer, starting processes does not pay off
_work: Callable[[Any], Any] = repr  # set in each worker process


def worth(workers: int, records: int) -> int:
    """Number of processes to use for this many records: 1 if more do not pay off, or if processes cannot be forked."""
    return workers if records >= LEAST and pool.forks() else 1


def ranges(n: int, size: int = BATCH) -> Iterator[range]:
    """0 .. n-1, split into batches."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """The items, split into lists."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def mapped(work: Callable[[T], R], parts: Iterable[T], workers: int) -> Iterator[R]:
    """Apply `work` to every part in `workers` processes and yield the results in order; with 1, none is started.

    At most four parts per process are in progress or waiting to be yielded. The processes inherit `work`, with
    everything it refers to, as it is when the first part starts. Raises DataError if one was killed; errors of `work`
    are passed on.
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
        where, step = f"{workers} processes: {error}", "free memory or lower runtime.workers"
        raise DataError("a worker process was killed while it encoded the data", where, step) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the workers too: they exit silently


def _run(part: Any) -> Any:
    return _work(part)
