"""Encoding by several processes: the same bytes, errors that are told, and files as numpy itself would write them."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest

from tasks.config.options import read
from tasks.data import DataError, NullProgress, open_data, parallel
from tasks.data.ragged import open_tokens, write_tokens
from tasks.seq2seq.encode import encode, encode_test
from tasks.seq2seq.options import Encode


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


OPTIONS = [
    {"subword": "bpe", "vocab_size": 60, "joint": True, "max_target_tokens": 9, "filter_dev": True},
    pytest.param({"tokenizer": "moses_lower", "vocab_size": 40, "min_count": 2}, marks=pytest.mark.slow),
    pytest.param({"subword": "sentencepiece", "vocab_size": 50}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_bytes_do_not_depend_on_the_number_of_processes(options, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "LEAST", 1)
    monkeypatch.setattr(parallel.ranges, "__defaults__", (37,))
    monkeypatch.setattr(parallel.batches, "__defaults__", (41,))
    made = []
    for workers in (1, 3):
        root = tmp_path / str(workers)
        data = open_data({"name": "toy", "limits": {"train": 200, "dev": 50, "test": 45}}, root)
        encoded = encode(data, read(Encode, options, "encode"), root, NullProgress(), workers)
        test = encode_test(data, encoded.folder, root, NullProgress(), workers)
        made.append((files(encoded.folder), files(test.folder), encoded.sha256))
    assert made[0] == made[1] and len(made[0][0]) > 10


def test_small_sets_start_no_process():
    assert parallel.worth(8, parallel.LEAST - 1) == 1 and parallel.worth(8, parallel.LEAST) == 8


def test_tokens_are_written_as_numpy_would(tmp_path):
    rng = random.Random(1)
    rows = [rng.choices("abcdefg", k=rng.randint(0, 6)) for _ in range(5000)]
    index = {letter: i for i, letter in enumerate("abcdef", 4)}
    share = write_tokens(tmp_path, "x", rows, index, 3)
    flat = np.array([index.get(t, 3) for row in rows for t in row], dtype=np.int32)
    np.save(tmp_path / "own.npy", flat)
    assert (tmp_path / "x.ids.npy").read_bytes() == (tmp_path / "own.npy").read_bytes()
    assert share == float((flat == 3).mean())
    ids, tokens = open_tokens(tmp_path, "x")
    assert [tokens[i] for i in range(5000)] == rows and list(ids.lengths) == list(map(len, rows))
    assert write_tokens(tmp_path, "none", [], index, 3) == 0.0 and len(open_tokens(tmp_path, "none")[0]) == 0
    rows = [["a", "b", "a"], [], ["é", "\u2028x"]]
    assert write_tokens(tmp_path, "odd", rows, index, 3) == pytest.approx(2 / 5)
    ids, tokens = open_tokens(tmp_path, "odd")
    assert [ids[i].tolist() for i in (0, 1, -1)] == [[4, 5, 4], [], [3, 3]] and tokens[-1] == rows[-1]
    for found in (ids, tokens):
        with pytest.raises(IndexError):
            found[3]


def _fail(part):
    if part == 5:
        raise DataError("the fifth", "here", "see")
    return part


def _die(part):
    if part == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def test_an_error_in_a_process_is_the_error():
    with pytest.raises(DataError, match="the fifth"):
        list(parallel.mapped(_fail, range(40), 2))
    with pytest.raises(DataError, match=r"a process that encoded was killed") as caught:
        list(parallel.mapped(_die, range(40), 2))
    assert "runtime.workers" in caught.value.next_step


def test_results_come_in_order_and_few_parts_wait():
    taken = []

    def parts():
        for i in range(100):
            taken.append(i)
            yield i

    results = parallel.mapped(_square, parts(), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 4] and len(taken) <= 11
    assert list(results) == [i * i for i in range(3, 100)]


def _square(i):
    return i * i
