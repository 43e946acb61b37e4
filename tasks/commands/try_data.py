"""`scripts/try.py`: from a file of your own to a table, pictures of attention and a report, with one command.

`tasks.data.read.guess` guesses what the file holds. `configs/try.yaml` has the mappings and the scores. The sizes are chosen
here: on two cores, data of ordinary size take about ten minutes.
"""

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from repro.errors import ConfigError
from repro.launch.display import fitted, width
from repro.plan import experiment as experiments
from repro.plan.experiment import Experiment
from repro.plugins import naming
from repro.store import Store, elsewhere
from tasks import use
from tasks.commands import reproduce
from tasks.config import compose
from tasks.config.files import quoted
from tasks.config.request import Request, whole
from tasks.data import DataError, Progress, Splits, open_data
from tasks.data.dataset import fingerprint
from tasks.data.files import sha256_of
from tasks.data.read.guess import Guess, guess
from tasks.data.records import Example, texts_of
from tasks.data.words import unspaced, words
from tasks.draw import terminal

# Per kind of data: examples seen until training has converged, and words read in about three CPU minutes.
SEEN = {"pairs": 84_000, "summaries": 60_000, "text": 30_000, "texts": 60_000}
WORDS = {"pairs": 2_400_000, "summaries": 2_400_000, "text": 3_000_000, "texts": 3_000_000}
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
HELD_OUT = {"pairs": 500, "summaries": 500, "text": 2_000, "texts": 2_000}  # maximum dev and test examples
FEW = 500  # training examples below which scores say little
WORDS_SHOWN = 9  # desired number of words of the drawn test example
SORTED = 0.1  # largest difference between the shares of a class in the first examples and in all
COLUMNS = "data.source, data.target, data.text, data.label"  # that correct a guess
OF_TASK = {"translation": "files", "summarization": "files", "imdb": "table", "snli": "table"}


def main(request: Request) -> int:
    """Guess, train, print the table, the pictures and the next commands. Returns the exit status, 1 if a cell failed.

    Raises ConfigError if an override is invalid, DataError if the file cannot be used, and errors of `reproduce.main`.
    """
    _check(request)
    keys = dict(request.keys)
    chosen = {key: keys.pop(key).values for key in ("mapping", "seed") if key in keys}
    given = {key: one.value for key, one in keys.items()}
    one, found = _guessed(given)
    (column,) = one.columns
    place = Path(str(given["data.path"]))
    name, beside = place.name, place.iterdir() if place.is_dir() else place.parent.glob(f"{place.name}*")
    content = fingerprint([sha256_of(p) for p in sorted(beside) if p.is_file()])[:6]  # another file has another table
    options = {"data" if key == "name" else f"data.{key}": value for key, value in found.options.items()}
    added = [f"{key}={quoted(value)}" for key, value in options.items() if key not in given]
    print(fitted(f"{found.said}\n  read as {shlex.join([column.overrides[0], *added])}"))
    print(fitted(f"  otherwise, set task={'|'.join(OF_TASK)} or {COLUMNS}"))
    known = {row.mapping: row for row in one.rows}
    rows = tuple(known.get(mapping) or compose.own_row(mapping, []) for mapping in chosen.get("mapping", known))
    label = "_".join(filter(None, ["try", *re.findall("[A-Za-z0-9]+", name), content]))
    seeds = whole(",".join(chosen["seed"])) if "seed" in chosen else one.seeds
    columns = (replace(column, label=f"{name}: {column.label}"),)
    one = replace(one, name=label, title=f"Your own data: {name}", rows=rows, columns=columns, seeds=seeds)
    typed = [text for key, one_ in keys.items() if key not in ("task", "profile") for text in one_.texts]
    with compose.composer() as composed:
        config = composed([*column.overrides, *one.rows[0].changes, *added, *typed])
    splits = open_data(config["data"], config["paths"]["data"], Progress()).read(Progress())
    print(f"{name}: {', '.join(f'{len(records):,} {split}' for split, records in splits.items())}")
    rest = [*added, *_fitted(column.key, splits, config, set(given)), *typed]
    made = reproduce.prepared(reproduce.outline([one], rest))
    store = Store(config["paths"]["outputs"])
    return Try(made, store, test=splits["test"], arguments=request.overrides).run()


def _check(request: Request) -> None:
    """Raise ConfigError if there are words without a key, or a task or data set is not available here."""
    if request.names:
        raise ConfigError(f"{request.names[0]!r} has no key; write data.path={shlex.quote(request.names[0])}")
    for key, allowed in (("data", ("files", "table")), ("task", tuple(OF_TASK))):
        if key in request.keys and request.keys[key].value not in allowed:
            typed = request.keys[key]
            here = f"{typed.text} is not available here, where data=files|table and task={'|'.join(OF_TASK)} are"
            raise ConfigError(f"{here}; python scripts/train.py takes others")


def _guessed(values: Mapping[str, Any]) -> tuple[Experiment, Guess]:
    """The experiment with the one column that fits the data, and the guess."""
    own = {k.removeprefix("data."): v for k, v in values.items() if k.startswith("data.") and v is not None}
    task, data = values.get("task"), values.get("data")
    found = guess(own.pop("path", None), own, data or OF_TASK.get(str(task)))
    page: Any = OmegaConf.to_container(OmegaConf.load(compose.CONFIGS / "try.yaml"))
    one = experiments.read(page, "try", str(values.get("profile", "demo")))
    (column,) = [c for c in one.columns if (f"task={task}" in c.overrides if task else c.key == found.kind)]
    if {column.key, found.kind} - {"pairs", "summaries"} and column.key != found.kind:
        raise ConfigError(f"task={task} does not fit: {found.said}; leave task= out, or set {COLUMNS}")
    return replace(one, columns=(column,)), found


def _fitted(kind: str, splits: Splits, config: Mapping[str, Any], typed: set[str]) -> list[str]:
    """Overrides that fit the training to the size of the data; prints them. Keys that the user set are left alone."""
    train, n = splits["train"], len(splits["train"])
    firsts = zip(*(texts_of(record)[:2] for record in train[:1000]))
    characters = [2 if unspaced(texts) else 6 for texts in firsts]  # at least, in a word
    lengths = [[max(len(t.split()), len(t) // n) for t, n in zip(texts_of(record), characters)] for record in train]
    passes = min(SEEN[kind], WORDS[kind] / statistics.mean(map(sum, lengths)))  # examples read in all epochs
    limits = {"train": math.ceil(passes / FEWEST_EPOCHS), "dev": HELD_OUT[kind], "test": HELD_OUT[kind]}
    tokens = [2 * sorted(side)[int(0.95 * n)] for side in zip(*lengths)]  # enough for 95 % of the texts, in subwords
    longest = {"encode.max_tokens": min(tokens[0], 400), "encode.max_source_tokens": min(tokens[0], 200)}
    longest |= {key: min(tokens[-1], 200) for key in ("encode.max_target_tokens", "decode.max_len_b")}
    sizes = {f"data.limits.{split}": most for split, most in limits.items() if len(splits[split]) > most}
    if kind in ("text", "texts") and 2 in characters and "encode.tokenizer" not in typed:
        sizes["encode.subword"] = "char"  # no spaces between words
    sizes["train.max_epochs"] = min(math.ceil(passes / min(n, limits["train"])), MOST_EPOCHS)
    for key, most in longest.items():
        node, option = key.split(".")
        if most > (config[node].get(option) or math.inf):  # null means no limit
            sizes[key] = most
    if config["decode"].get("max_len_a"):  # in this case, the maximum output length depends on the source
        sizes.pop("decode.max_len_b", None)
    sizes = {key: most for key, most in sizes.items() if not typed & {key, key.rpartition(".")[0]}}
    for split, records in splits.items() if kind in ("text", "texts") else ():
        labels, most = [example.label for example in records], limits[split]
        if f"data.limits.{split}" in sizes:  # are the first labels like all labels?
            every, first = Counter(labels), Counter(labels[:most])
            if any(abs(every[c] / len(labels) - first[c] / most) > SORTED for c in every):
                told = f"only {most:,} of {len(labels):,} {split} examples fit into a run of ten minutes"
                step = f"shuffle its rows, or take all of them, which is slower: data.limits.{split}=null"
                why = f"the first {most:,} have other classes than the rest"
                raise DataError(f"the file is sorted by class, and {told}", why, step)
    if n < FEW:
        few = f"only {n:,} training examples; the models will learn little"
        print(f"WARNING: {few}; {len(splits['test']):,} test examples prove nothing")
    chosen = [f"{key}={most}" for key, most in sizes.items()]
    if chosen:
        print(fitted(f"  chosen for these texts and about ten minutes on two cores: {' '.join(chosen)}"))
        print(fitted("  set these keys yourself to change that; data.limits.train=null reads everything"))
    return chosen


@dataclass
class Try(reproduce.Driver):
    """The driver of an experiment that also draws the attention of each row for one test example."""

    test: Sequence[Any] = ()
    arguments: tuple[str, ...] = ()

    def following(self) -> str:
        """The drawings, and the next commands."""
        (plan,) = self.plans
        found = {}  # label -> cell with the first seed
        for slot in plan.slots:
            if slot.cell_id in self.done:
                found.setdefault(plan.experiment.rows[slot.row].label, slot)
        if not found:
            return fitted("next: no cell has finished; the errors are above and in the report")
        cut = words if unspaced(texts_of(one)[0] for one in self.test[:1000]) else str.split
        shown = min(self.test, key=lambda one: abs(len(cut(texts_of(one)[0])) - WORDS_SHOWN))
        texts = shown.texts if isinstance(shown, Example) else (shown.source,)
        expected = "" if isinstance(shown, Example) else f" (reference: {shown.references[0]})"
        lines = [fitted(f"attention for a test example: {' | '.join(texts)}{expected}")]
        for label, cell in found.items():
            model = use.load_cell(cell.entry(self.store).folder, plugins=cell.config["plugins"])
            (said,) = model.predict([texts if len(texts) > 1 else texts[0]])
            lines.append(f"\n{label}: {said.output}\n{terminal.terminal(said, width())}")
        cells, by = list(found.values()), next(iter(found.values())).config["train"]["best_metric"]
        better = cells[0].family.METRICS[by].better
        dev = [better * one.results(self.store).metrics.get(f"dev/{by}", -better * math.inf) for one in cells]
        best = cells[dev.index(max(dev))]
        which = f"one of {dev.count(max(dev))} that are equal" if dev.count(max(dev)) > 1 else "the best"
        where = elsewhere(self.store.root) + naming(best.config["plugins"])
        cell, line = best.training_id[:12], "\\t".join("%s" for _ in texts)
        again = shlex.join(o for o in self.arguments if not o.startswith("seed="))
        lines += [
            fitted(terminal.LOOK),
            f"next, with {best.mapping}, {which} on dev ({by} {better * max(dev):.1f}):",
            f"  printf '{line}\\n' {shlex.join(texts)} | python scripts/predict.py {cell}{where} --heat",
            f"  python scripts/export.py {cell} models/{plan.experiment.name}{where}",
            "three seeds, because one run proves no ranking:",
            f"  python scripts/try.py {again} seed=1,2,3",
        ]
        return "\n".join(lines)
