"""`make gpu-proof`: check kernels, train all models with mixed precision, compare losses on two devices, train a table.

Each part returns plain JSON values, from which `write` makes a JSON file and a page in the result folder, which is
named after the machine. Without a GPU, everything runs on the CPU at toy size, and every page says so at the top.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import attention_proof, proof, throughput
from benchmarks.syncs import syncs
from repro import cell as cells
from repro.store import Store
from sparse_attention import kernels
from tasks.config.compose import composer, module_of
from tasks.data.progress import NullProgress
from tasks.seq2seq.encode import open_encoded

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("kernels", "training", "table")
LIMIT = 540  # seconds for a table; the same command continues it
AGREE = 0.02  # relative tolerance of a loss, since additions in another order are amplified by training
COUNTED = (3, 4)  # updates in which waits are counted; the first ones allocate and compile
TEXTS = ["data.limits={train: 600, dev: 60, test: 20}", "train.max_epochs=2"]
TABLES = (("imdb", "martins2020_table1"), ("multi30k", "niculae2017_table2"), ("yeast", "laha2018_table3"))
MODELS = {
    "LSTM": ["task=toy", *TEXTS, "mapping=fusedmax"],
    "transformer": ["task=toy", *TEXTS, "model=transformer_small", "encode.joint=true", "mapping=entmax"],
    "IMDB": ["task=imdb", "data=toy_reviews", *TEXTS, "mapping=continuous_sparsemax", "model.discrete=softmax"],
    "SNLI": ["task=snli", "data=toy_entailment", *TEXTS, "mapping=oscarmax"],
    "VQA": ["task=vqa", "data=vqa2", "data.path={vqa2}", "data.input=pixels", "data.dev_share=0.2", "encode.min_answer_count=1",
            "train.max_epochs=2", "train.batch_size=8", "mapping=sparsehourglass"],
}  # fmt: skip
SMALL = {
    "LSTM": ["model.embed_dim=16", "model.hidden_dim=16"],
    "transformer": ["model.hidden_dim=16", "model.ff_dim=16", "model.heads=2"],
    "IMDB": ["model.embed_dim=16", "model.hidden_dim=16"],
    "SNLI": ["model.embed_dim=16", "model.hidden_dim=16"],
    "VQA": ["model.hidden_dim=16", "model.ff_dim=16"],
}
TOY = ["data.limits={train: 48, dev: 12, test: 12}", "train.batch_size=8"]
TOY_TABLE = [*TOY, "rows=softmax", "train.max_epochs=1", "encode.subword=none", "encode.vocab_size=null"]  # of the demo


def _run(overrides: list[str], folder: Path, device: str) -> tuple[dict[str, float], list[dict[str, str]], list[str]]:
    """Train one cell.

    Returns:
        its metrics, the rows of its learning curve, and the operations that made the host wait in the updates COUNTED.
    """
    from tasks.fairseq_plugin.trainer import Trainer

    waits: list[str] = []
    step, made = Trainer.train_step, [0]

    def counted(self: Any, samples: Any) -> Any:
        made[0] += 1
        if made[0] not in COUNTED:
            return step(self, samples)
        host = [s["net_input"]["src_lengths"] for s in samples if "src_lengths" in s["net_input"]]
        waits.extend(syncs(lambda: step(self, samples), self.device, host))

    with composer() as compose:
        config = compose(
            [*overrides, f"runtime.device={device}", f"paths.data={folder / 'data'}", f"paths.outputs={folder}"]
        )
    cell, store = cells.prepare(config, module_of(config), progress=NullProgress()), Store(folder)
    with mock.patch.object(Trainer, "train_step", counted):
        outcome = cells.run(cell, store)
    if outcome.state != "done":
        raise RuntimeError(f"a training of the proof ended as {outcome.state}: {outcome.reason}")
    entry = cell.entry(store)
    with (entry.folder / "curves.csv").open(encoding="utf-8") as file:
        return (entry.read() or {})["metrics"], list(csv.DictReader(file)), waits


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _losses(curve: list[dict[str, str]]) -> list[float]:
    """Dev and train losses, epoch by epoch."""
    return [float(row[key]) for row in curve for key in sorted(row) if key.endswith("/loss") and row[key]]


def training(device: str, toy: bool, folder: Path) -> list[dict[str, Any]]:
    """Train every model with mixed precision, and in float32 on the device and on the CPU for comparison."""
    runpy.run_path(str(ROOT / "tests" / "small_vqa2.py"))["write_vqa2"](folder / "vqa2")
    found = []
    for name, model in MODELS.items():
        _tell(name)
        small = [*SMALL[name], *([] if name == "VQA" else TOY)] if toy else []
        overrides = [o.replace("{vqa2}", str(folder / "vqa2")) for o in [*model, *small]]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        metrics, _, waits = _run([*overrides, "train.precision=bf16"], folder / name / "half", device)
        seconds = time.perf_counter() - started
        memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
        losses = _losses(_run(overrides, folder / name / "full", device)[1])
        with kernels.use("reference"):  # if the device is the CPU, too, at least the kernels differ
            expected = _losses(_run(overrides, folder / name / "cpu", "cpu")[1])
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
        rates = {key.removeprefix("train/"): value for key, value in metrics.items() if key.endswith("_per_second")}
        found.append({
            "model": name, "seconds": round(seconds, 1), **rates, "peak_mib": memory, "waits": waits, "losses": losses,
            "reference_losses": expected, "apart": apart, "agrees": len(losses) > 0 and apart <= AGREE,
        })  # fmt: skip
    return found


def speeds(device: str, toy: bool, folder: Path) -> list[dict[str, Any]]:
    """Training speed of translation models: tokens per second; ratios of every mapping and a plain loop to softmax."""
    import tasks.fairseq_plugin  # noqa: F401  registers the models

    sizes = throughput.Sizes(60, 4, 3, 6) if toy else throughput.Sizes(words=10_000, batch=64)
    chosen = ["Transformer 2x128"] if toy else ["LSTM 2x500 with input feeding", "Transformer 2x128"]
    mappings = ["sparsemax"] if toy else ["sparsemax", "entmax", "fusedmax", "oscarmax", "sparsehourglass"]
    found = []
    for model in chosen:
        _tell(model)
        configs = {
            m: throughput.configuration(throughput.MODELS[model], m, sizes, folder, device)
            for m in ("softmax", *mappings)
        }
        path = throughput.encode(configs["softmax"])
        encoded = open_encoded(path)
        ours = {m: throughput.Updates(c, path, folder) for m, c in configs.items()}
        plain = throughput.PlainTraining(configs["softmax"], encoded, ours["softmax"])
        block = 1 if toy else throughput.READ_EVERY
        ratios, seconds = throughput.turns({**ours, throughput.PLAIN: plain}, 2 if toy else 10, device, block)
        target = encoded.splits["train"].target
        tokens = statistics.mean(sum(len(target[int(i)]) + 1 for i in rows) for rows in ours["softmax"].rows)
        medians = {label: statistics.median(values) for label, values in ratios.items()}
        found.append({"model": model, "tokens_per_second": tokens / seconds, **medians})
    return found


def table(device: str, toy: bool, outputs: Path, name: str | None, rest: Sequence[str]) -> dict[str, Any]:
    """Train a whole table: `name`, or by default the first of TABLES with available data.

    At toy size, or if no data are available, the default is the demo.
    """
    name = name or (None if toy else _available())
    chosen, profile = name or "demo", "cpu" if name and not toy else "demo"
    command = [
        sys.executable, str(ROOT / "scripts" / "reproduce.py"), chosen, f"profile={profile}", f"runtime.device={device}",
        f"paths.outputs={outputs}", *(TOY_TABLE if toy and chosen == "demo" else []), *rest,
    ]  # fmt: skip
    started, late = time.perf_counter(), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            out, err = running.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            running.terminate()  # the process saves its state and ends its workers
            out, err = running.communicate()
            late = f"\nNOT FINISHED after {LIMIT} s: the same command goes on from here"
    said, code = out[-8000:] + err[-2000:] + late, 124 if late else running.returncode
    return {
        "table": chosen,
        "profile": profile,
        "status": code,
        "seconds": round(time.perf_counter() - started, 1),
        "said": said,
    }


def _available() -> str | None:
    """The first table whose data set can be opened without downloading anything."""
    from tasks.data import DataError, nothing_fetched, open_data

    for data, experiment in TABLES:
        with contextlib.suppress(DataError), nothing_fetched():
            open_data({"name": data}, ROOT / "data", NullProgress())
            return experiment
    return None


def main(part: str, device: str | None, toy: bool, results: Path, name: str | None, rest: Sequence[str]) -> int:
    """Call `run` and print where the page is. Returns the exit status, 1 if something is wrong."""
    page, wrong = run(part, device, toy, results, results / "cells", name, rest)
    print(page.read_text(encoding="utf-8").split("\n", 1)[0], f"Written to {page}.", sep="\n")
    print("".join(f"FAILED: {one}\n" for one in wrong), end="")
    return int(bool(wrong))


def run(
    part: str,
    device: str | None,
    toy: bool,
    results: Path,
    outputs: Path,
    name: str | None = None,
    rest: Sequence[str] = (),
) -> tuple[Path, list[str]]:
    """Run one of PARTS.

    Args:
        device: cuda or cpu; by default cuda if there is a GPU.
        toy: use the smallest sizes; always true on a CPU.
        results: folder in which a folder for this machine and day is made.
        outputs: the store for the cells of a table.
        name, rest: the table, and overrides for it.

    Returns:
        the page that was written, and one sentence for each failure.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    toy, machine = toy or device == "cpu", proof.machine(device)
    where = f"{'CPU-' if device == 'cpu' else ''}{machine['name']}-{time.strftime('%Y-%m-%d')}"
    with tempfile.TemporaryDirectory() as scratch:
        if part == "kernels":
            sizes = proof.TOY if toy else proof.FULL
            found: dict[str, Any] = {
                "agreement": proof.compare(device, sizes),
                "attention_agreement": attention_proof.compare(
                    device, attention_proof.COMPARED_TOY if toy else attention_proof.COMPARED
                ),
                "speed": proof.speeds(device, sizes),
                "attention": proof.attention_speeds(device, sizes),
                "limits": attention_proof.LIMITS,
                "sparse_attention": attention_proof.speeds(device, sizes),
            }
        elif part == "training":
            found = {
                "models": training(device, toy, Path(scratch)),
                "speed": speeds(device, toy, Path(scratch) / "speed"),
            }
        else:
            found = {"table": table(device, toy, outputs, name, rest)}
    return write(part, found, machine, results / re.sub(r"[^\w.-]+", "-", where)), failures(found)


def failures(found: dict[str, Any]) -> list[str]:
    """One sentence for each disagreement, each training step that waits for the device, and each failed table."""
    wrong = [f"{row['mapping']} in {row['dtype']} on {row['shape']}: off by {row['error']:.2g}, gradient {row['gradient_error']:.2g}"
             for row in [*found.get("agreement", []), *found.get("attention_agreement", [])] if not row["agrees"]]  # fmt: skip
    for row in found.get("models", []):
        wrong += [] if row["agrees"] else [f"{row['model']}: losses {row['apart']:.1%} apart"]
        wrong += [f"{row['model']}: a training step waits: {wait}" for wait in row["waits"]]
    if found.get("table", {}).get("status", 0):
        wrong.append(f"{found['table']['table']} ended with {found['table']['status']}; its output stands in the page")
    return wrong


def write(part: str, found: dict[str, Any], machine: dict[str, Any], folder: Path) -> Path:
    """Write `<part>.json` and `<part>.md` into the folder. Returns the page, `<part>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n", encoding="utf-8")
    loud = "" if machine["device"] == "cuda" else "# DEVICE: CPU. NOTHING HERE WAS RUN ON A GPU.\n\n"
    versions = ", ".join(f"{k} {v or '(not installed)'}" for k, v in machine["versions"].items())
    lines = [
        f"{loud}# {part}: {machine['name']}",
        "",
        f"device: {machine['device']}; {versions}.",
        "",
        f"```\n{machine['clocks']}\n```",
        "",
    ]
    for title, value in found.items():
        if isinstance(value, str):
            lines += [value, ""]
        elif isinstance(value, list) and value:
            keys = list(value[0])
            lines += [f"## {title}", "", "| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
            lines += ["| " + " | ".join(_text(row.get(k)) for k in keys) + " |" for row in value] + [""]
        elif isinstance(value, dict):
            lines += [
                f"## {title}",
                "",
                *(f"- {k}: {v}" if k != "said" else f"\n```\n{v}\n```" for k, v in value.items()),
                "",
            ]
    page = folder / f"{part}.md"
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
