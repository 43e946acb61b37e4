"""What `scripts/bench.py` does: measure, print a page or a section, and write it unless the output is `-`."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = str(DOCS / "reference" / "benchmarks.md")
DATA = os.environ.get("SPARSE_ATTENTION_DATA", "data/cache")


def _torch(threads: int = 1) -> Any:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
    import torch

    torch.set_num_threads(threads)
    return torch


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _written(page: str, output: str, heading: str | None = None) -> None:
    """Print `page`, and write it unless the output is `-`; a part of benchmarks.md if its `heading` is given."""
    from benchmarks import pages

    print(page)
    if output != "-":
        old = Path(output).read_text() if Path(output).is_file() else "# Benchmarks\n"
        Path(output).write_text(page if heading is None else pages.renewed(old, heading, page))
        _say(f"Written to {output}. Compare with `git diff {output}`.")


def mappings(
    *,
    only: str = "",
    shapes: str = "",
    seconds: float = 2.0,
    threads: int = 1,
    no_peers: bool = False,
    output: str = PAGE,
    check: bool = False,
    record: bool = False,
) -> int:
    """Time the mappings, or check them (`gate.run`). Raises ValueError if `only` matches no mapping."""
    torch = _torch(threads)
    import sparse_attention as sa
    from benchmarks import absolute, gate, pages, table

    if check or record:
        return gate.run(only.split(","), seconds, record)
    table.keep_freed_memory()
    sizes: Any = tuple(tuple(int(v) for v in s.split("x")) for s in shapes.split(",")) if shapes else table.SHAPES
    wanted = tuple(only.split(","))  # "" matches every label
    every: Any = (table.CASES, absolute.DENSITIES, absolute.STRUCTURES)
    found: list[Any] = [[case for case in some if case.label.startswith(wanted)] for some in every]
    cases, continuous, structured = found
    known = {case.name for case in table.CASES}
    cases += [table.Case(name, name, {}) for name in wanted if name in sa.names("simplex") and name not in known]
    if not cases and not continuous and not structured:
        labels = ", ".join([*(case.label for some in every for case in some), *sa.names("simplex")])
        raise ValueError(f"--only {only!r} matches no mapping; there are {labels}")
    backend = sa.kernels.select("sparsemax", torch.zeros(1, 1, device=table.device()))
    kernels = backend.__name__.rsplit(".", 1)[1]
    if kernels == "native":
        kernels += f" ({backend.instruction_set()})"
    rows = []
    for done, case in enumerate(cases, 1):
        _say(f"[{done}/{len(cases)}] {case.label}")
        rows += table.measure(case, sizes, seconds, {} if no_peers else table.peers(case.label))
    cuda = table.device() == "cuda"
    made = {"machine": torch.cuda.get_device_name() if cuda else "", "python": platform.python_version()}
    page = pages.page("table", rows=rows, shapes=sizes, entmax=table.version(), kernels=kernels, **made)
    if continuous:
        _say(f"continuous attention: {len(continuous)} cases")
        measured = absolute.densities(continuous, seconds)
        page += "\n" + pages.page("continuous", rows=measured, breadths=absolute.BREADTHS, batch=absolute.BATCH)
    if structured:
        _say(f"structured attention: {len(structured)} cases")
        page += "\n" + pages.page("structured", rows=absolute.structures(structured, seconds))
    _written(page, output, pages.PARTS[0])
    return 0


def attention(
    *,
    n: Sequence[int] = (),
    seconds: float = 2.0,
    output: str = PAGE,
) -> None:
    """Time attention. Raises ValueError if no case has one of the `n` positions."""
    _torch()
    import sparse_attention as sa
    from benchmarks import attention as bench
    from benchmarks import pages

    cases = [case for case in bench.ATTENTION_CASES if not n or case.n in n]
    if not cases:
        raise ValueError(f"--n {' '.join(map(str, n))} matches no case; there are 512, 1024, 4096, 8192")
    rows = []
    for done, case in enumerate(cases, 1):
        _say(f"[{done}/{len(cases)}] {case}")
        rows.append(bench.timed(case, seconds))
    kernels = sa.kernels.backend("native").instruction_set()
    memory = bench.measure_memory(cases)
    page = pages.page("attention", rows=rows, memory=memory, kernels=kernels)
    page += "\n" + pages.page("decoding", rows=[bench.decoded(case, seconds) for case in bench.DECODING_CASES])
    _written(page, output, pages.PARTS[1])


def training(
    *,
    models: Sequence[str] = (),
    mappings: Sequence[str] = (),
    turns: int = 40,
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int = 1,
    words: int = 2000,
    batch: int = 32,
    output: str = PAGE,
) -> None:
    """Time training and search. Raises ValueError for unknown models or mappings."""
    _torch(threads)
    import tasks.fairseq_plugin  # noqa: F401  registers the models
    from benchmarks import pages, throughput
    from repro.store import provenance

    known = throughput.names()
    wanted, chosen = mappings or known, models or list(throughput.MODELS)
    if unknown := [m for m in wanted if m not in known] + [m for m in chosen if m not in throughput.MODELS]:
        known_models = "; ".join(throughput.MODELS)
        raise ValueError(f"{', '.join(unknown)} cannot be timed; there are {', '.join(known)}; {known_models}")
    sizes, others = throughput.Sizes(words=words, batch=batch), [m for m in wanted if m != "softmax"]
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            tables += throughput.measure(model, others, sizes, Path(folder), device, turns, _say)
    machine = provenance.collect()["machine"]
    where = machine["gpu"] if device == "cuda" else machine["cpu"]
    _written(throughput.markdown(tables, sizes, device, where or platform.machine()), output, pages.PARTS[2])


def documents(
    *,
    words: int = 400,
    batch: int = 16,
    seconds: float = 60.0,
    mappings: Sequence[str] = (),
    output: str = str(DOCS / "reference" / "documents.md"),
) -> None:
    """Time training steps of a classifier over documents."""
    _torch()
    from benchmarks import attention as bench
    from benchmarks import pages

    sizes, others = bench.Documents(words, batch), (m for m in mappings or bench.fused_names() if m != "softmax")
    rows = bench.measure_documents(sizes, seconds, ["softmax", *others])
    base = {row.path: row for row in rows if row.mapping == "softmax"}
    best = min((row for row in rows if row.path == bench.PATHS[0]), key=lambda row: row.seconds)
    shown = {"reviews": bench.REVIEWS, "updates": -(-bench.REVIEWS // sizes.batch), "base": base, "best": best}
    _written(pages.page("documents", rows=rows, sizes=sizes, seconds=seconds, **shown), output)


def language_model(
    *,
    only: Sequence[str] = (),
    page: bool = False,
    seconds: float = 600,
    turns: int = 5,
    root: str = DATA,
    output: Path = DOCS / "results",
) -> None:
    """Train the rows, measure, and write the page.

    Raises:
        ValueError: a row is unknown.
        DataError: the data are unavailable.
    """
    _torch()
    from benchmarks.language_model import report, training

    if unknown := set(only) - set(training.MAPPINGS):
        raise ValueError(f"unknown row {', '.join(sorted(unknown))}; there are {', '.join(training.MAPPINGS)}")
    folder = Path(root) / "language_model"
    text, dev, source = training.texts(root)
    folder.mkdir(parents=True, exist_ok=True)
    for name in () if page else only or training.MAPPINGS:
        options = training.Options(name, seconds=seconds)
        _, record = training.train(options, text, dev, source, folder, _say)
        (folder / f"{name}.json").write_text(json.dumps(record))
    if only and not page:
        print("Next: python scripts/bench.py language_model --page")
    else:
        print(f"Written to {report.write(folder, dev, turns, output)}")


def length(*, page: bool = False, root: str = DATA, output: Path = DOCS / "results") -> None:
    """Train the models that are missing, and write the page. Raises ValueError if there are no finished models."""
    _torch()
    from benchmarks.length import report, training

    file = Path(root) / "length.jsonl"
    if not page:
        file.parent.mkdir(parents=True, exist_ok=True)
        training.run(file, _say)
    print(f"Written to {report.write(training.record(file), output)}")
