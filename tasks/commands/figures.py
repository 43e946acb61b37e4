"""Draw the papers' figures of `configs/figures.yaml` from trained cells.

A figure is written to <outputs>/figures/<experiment>/<figure>_<profile>.svg, together with a file of its numbers (.json
or .csv) and a file with the text that the report of the experiment shows about it (.about.json).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from repro.identity import pair
from repro.report.placed import note
from repro.store import Store
from tasks.commands import attending, reproduce
from tasks.commands.attending import Finished
from tasks.config.options import CONFIGS
from tasks.config.request import REPRODUCE, Request
from tasks.draw import attention


@dataclass
class Options:
    """Options given for a figure; an empty option means the figure's default.

    Attributes:
        test: numbers of test examples, separated by commas; `chosen` has them as a list.
        text: the user's own texts.
        second: for each text, the second text of the pair, or the output that every row is forced to write.
        endings: file types to write.
    """

    overrides: Sequence[str] = ()
    count: int = 2
    test: str = ""
    text: Sequence[str] = ()
    second: Sequence[str] = ()
    endings: Sequence[str] = (".svg",)

    def __post_init__(self) -> None:
        try:
            self.chosen = [int(number) for number in self.test.split(",") if number]
        except ValueError:
            raise ValueError(f"--test {self.test} must be numbers of test examples, as 3,17") from None


@dataclass(frozen=True)
class Drawn:
    """A drawn figure.

    Attributes:
        stem: path of the files without the ending (.svg, ...).
        data: the file with the numbers.
        cells: training ids of the cells that the figure was drawn from.
    """

    stem: Path
    caption: str
    data: Path
    cells: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A figure of a paper; `configs/figures.yaml` says what each attribute means."""

    title: str
    published: str
    experiment: str
    draw: Callable[[Figure, Options, Callable[[Finished], Path]], list[Drawn]]
    rows: Sequence[str] = ()
    column: str | None = None
    text: Sequence[str] = ()
    second: Sequence[str] = ()
    points: str = ""


def make(names: Sequence[str], options: Options, out: Path | None = None) -> list[Path]:
    """Draw one of FIGURES and write the text that the report shows about it.

    Args:
        names: a name from FIGURES, optionally followed by another experiment that has suitable cells.

    Returns:
        the files that were written.

    Raises:
        ValueError: an option is invalid.
        DataUnavailable: cells are not finished.
    """
    name, figure = names[0], FIGURES[names[0]]
    if options.count < 1:
        raise ValueError(f"--count {options.count} draws nothing; give at least 1")
    if options.text and figure.draw in (_images, _documents):
        raise ValueError(f"--text is not for {name}, which draws test examples")
    if options.second and not (figure.second and options.text):
        raise ValueError(f"--with goes with --text, in {', '.join(n for n, f in FIGURES.items() if f.second)}")
    figure = replace(figure, experiment=names[-1]) if names[1:] else figure
    profile = next((o[8:] for o in reversed(options.overrides) if o.startswith("profile=")), "demo")
    files = []

    def place(outputs: str | Path) -> Path:
        folder = out or Path(outputs) / "figures" / figure.experiment
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}_{profile}"

    for drawn in figure.draw(figure, options, place):
        about = note(drawn.stem, figure.title, drawn.caption, figure.published, profile, drawn.data, drawn.cells)
        drawings = [drawn.stem.with_suffix(e) for e in options.endings]
        files += [*(drawing for drawing in drawings if drawing.exists()), drawn.data, about]
    return files


def listed() -> str:
    """Help text: every figure with its title and experiment, and the command to run next."""
    lines = [f"  {name:22s} {figure.title}; cells of {figure.experiment}" for name, figure in FIGURES.items()]
    then = "Next: python scripts/reproduce.py EXPERIMENT with the same overrides, before (the cells) and after (the report)"
    return "\n".join(["figures:", *lines, "", then])


def _finished(figure: Figure, options: Options) -> Finished:
    """The finished cells of the rows and column chosen by `rows=` and `columns=`, or else of the figure."""
    said = dict(map(pair, options.overrides))
    points = figure.points and said.get("rows", figure.points)
    column = None if "columns" in said else figure.column
    trained = attending.finished(figure.experiment, options.overrides, column, points=points)
    if figure.rows and "rows" not in said:
        trained.cells = [(label, cell) for label, cell in trained.cells if label in figure.rows] or trained.cells
    return trained


def _texts(figure: Figure, options: Options) -> tuple[Sequence[str], Sequence[str]]:
    """The user's own sentences, or those of the figure if there are none; empty if test examples are chosen."""
    if options.chosen:
        return (), ()
    if options.text and figure.second and len(options.text) != len(options.second):
        raise ValueError(
            f"{len(options.text)} --text and {len(options.second)} --with: this figure takes one --with for each --text"
        )
    return (options.text, options.second) if options.text else (figure.text, figure.second)


def _written(examples, trained: Finished, stem: Path, how: str, options: Options) -> list[Drawn]:
    """Write the drawing and its numbers; the caption is the experiment, the column and `how` the attention was made."""
    caption = f"{trained.title}; {trained.column.label}. {how}"
    data = attention.write(examples, stem, options.endings, caption)
    return [Drawn(stem, caption, data, [cell.training_id for _, cell in trained.cells])]


def _outputs(figure: Figure, options: Options, place) -> list[Drawn]:
    """Draw the attention of each row's model while it writes its own output."""
    trained = _finished(figure, options)
    texts, _ = _texts(figure, options)
    if texts:
        examples, what = [attending.translated(trained, text) for text in texts], "Your own sentence"
    else:
        rows = attending.stored(trained)
        chosen = _stored(options.chosen, [{int(k[5:]) for k in a if k.startswith("test/")} for *_, a in rows])
        examples = [attention.stored(rows, i) for i in chosen or attention.choose_sentences(rows, options.count)]
        what = "Test sentences"
    how = f"{what}; outputs of the models' own beam search."
    return _written(examples, trained, place(trained.outputs), how, options)


def _stored(wanted: Sequence[int], stored: Sequence[set[int]]) -> Sequence[int]:
    """Return `wanted`. Raises ValueError if a row has no stored attention for one of these examples."""
    if missing := [i for i in wanted if any(i not in one for one in stored)]:
        raise ValueError(f"no attention is stored for {missing}; raise task.keep_attention and run again")
    return wanted


def _forced(figure: Figure, options: Options, place) -> list[Drawn]:
    """Draw the attention of rows, or of one row's grid points, while all models are forced to write the same output."""
    trained = _finished(figure, options)
    pairs = list(zip(*_texts(figure, options), strict=True))
    if not pairs:
        chosen = options.chosen or attention.choose_sentences(attending.stored(trained), 1)
        pairs = [attending.stored_sentence(trained, i) for i in chosen]
    examples = [attending.forced(trained, *pair) for pair in pairs]
    return _written(examples, trained, place(trained.outputs), "All forced to one output.", options)


def _aligned(figure: Figure, options: Options, place) -> list[Drawn]:
    """Draw how each row's model aligns two texts, with the structures used."""
    trained = _finished(figure, options)
    pairs = [(pair, "own pair") for pair in zip(*_texts(figure, options), strict=True)] or attending.stored_pairs(
        trained, options.count
    )
    how = "Output (class); right: structures through the first text."
    return _written(attending.aligned(trained, pairs), trained, place(trained.outputs), how, options)


def _classified(figure: Figure, options: Options, place) -> list[Drawn]:
    """Draw the attention of each row's model while it classifies a text or a pair of texts, one line per row."""
    trained = _finished(figure, options)
    examples = [
        attending.classified(trained, given) for given in zip(*(t for t in _texts(figure, options) if t), strict=True)
    ]
    if not examples:
        raise ValueError(
            "this figure draws texts, not test examples: --text (and --with, for the second text of a pair)"
        )
    how = "One line a row: mapping, predicted class."
    return _written(examples, trained, place(trained.outputs), how, options)


def _images(figure: Figure, options: Options, place) -> list[Drawn]:
    """Draw the attention of each row's model over images."""
    from tasks.data import open_data
    from tasks.draw import images

    trained = _finished(figure, options)
    panels = []
    for label, cell in trained.cells:
        test = trained.test(cell)
        panels.append(
            images.read_panel(label, cell.config["mapping"], test.predictions(), test.path("attention.safetensors"))
        )
    first = trained.cells[0][1].config
    picture = images.pictures(open_data(first["data"], first["paths"]["data"]).about["images"])
    stored = [{int(k[5:]) for k in p.attention if k.startswith("test/")} for p in panels]
    chosen = _stored(options.chosen, stored) or images.choose(panels, options.count)
    stem, caption = place(trained.outputs), "" if options.chosen else images.CHOICE
    images.draw(panels, chosen, picture, [stem.with_suffix(e) for e in options.endings], caption)
    told = []
    for q in chosen:
        rows = [{"label": p.label, "output": p.records[q]["output"], "weights": p.weights(q)} for p in panels]
        told.append({"question": q, "asked": panels[0].records[q]["source"], "rows": rows})
    data = stem.with_suffix(".json")
    data.write_text(json.dumps({"about": caption, "questions": told}, ensure_ascii=False) + "\n", encoding="utf-8")
    return [
        Drawn(
            stem,
            f"{trained.title}; {trained.column.label}. {caption}",
            data,
            [cell.training_id for _, cell in trained.cells],
        )
    ]


def _documents(figure: Figure, options: Options, place) -> list[Drawn]:
    """Plot scores against the settings of the generated documents, over all finished cells."""
    from tasks.draw import documents

    planned = reproduce.plan(Request.read(options.overrides, REPRODUCE, [figure.experiment]))
    (made,), store = planned.plans, Store(planned.outputs)
    found = [(made.experiment.rows[s.row].label, s.config, s.found(store)) for s in made.slots]
    points = documents.collect((row, config, one.metrics) for row, config, one in found if one is not None)
    if points.empty:
        raise ValueError(f"no cell is finished; run: python scripts/reproduce.py {made.experiment.name}")
    stem = place(planned.outputs)
    files = documents.write(points, made.experiment.paper, stem.parent)
    caption = f"{made.experiment.title}. {sum(one is not None for *_, one in found)} of {len(found)} cells."
    numbers = next(f for f in files if f.suffix == ".csv")
    cells = [slot.training_id for slot in made.slots]
    return [Drawn(f.with_suffix(""), caption, numbers, cells) for f in files if f.suffix == ".svg"]


DRAW = {draw.__name__[1:]: draw for draw in (_outputs, _forced, _aligned, _classified, _images, _documents)}
FIGURES = {
    name: Figure(**{**one, "draw": DRAW[one["draw"]]})
    for name, one in yaml.safe_load((CONFIGS / "figures.yaml").read_text(encoding="utf-8")).items()
}
