"""Draw the papers' figures of `configs/figures.yaml` from trained cells.

A figure is written to <outputs>/figures/<experiment>/<figure>_<profile>.svg, together with a file of its numbers (.json
or .csv).
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from repro.identity import pair
from tasks.commands import attention_of, reproduce
from tasks.commands.attention_of import Finished
from tasks.config.files import values_in
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
            raise ValueError(f"--test {self.test} must be numbers of test examples, as in 3,17") from None


Write = Callable[[Path, Sequence[str], str], Path]  # (path without ending, endings, caption) -> file of numbers


@dataclass(frozen=True)
class Figure:
    """A figure of a paper; `configs/figures.yaml` says what each attribute means."""

    title: str
    published: str
    experiment: str
    draw: str
    rows: Sequence[str] = ()
    column: str | None = None
    text: Sequence[str] = ()
    second: Sequence[str] = ()
    points: str = ""


def make(names: Sequence[str], options: Options, out: Path | None = None) -> list[Path]:
    """Draw one of FIGURES; returns the files that were written.

    Args:
        names: a name from FIGURES, optionally followed by another experiment that has suitable cells.

    Raises ValueError if an option is invalid, DataUnavailable if cells are not finished.
    """
    name, figure = names[0], FIGURES[names[0]]
    if options.count < 1:
        raise ValueError(f"--count {options.count} draws nothing; give at least 1")
    if options.text and figure.draw in ("images", "documents"):
        raise ValueError(f"--text is not for {name}, which draws test examples; leave it out")
    if options.second and not (figure.second and options.text):
        raise ValueError(f"--with goes with --text, and only in {', '.join(n for n, f in FIGURES.items() if f.second)}")
    figure = replace(figure, experiment=names[-1]) if names[1:] else figure
    profile = next((o[8:] for o in reversed(options.overrides) if o.startswith("profile=")), "demo")

    def place(outputs: str | Path) -> Path:
        folder = out or Path(outputs) / "figures" / figure.experiment
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}_{profile}"

    if figure.draw == "documents":
        stems, data = _documents(figure, options, place)
    else:
        said = dict(map(pair, options.overrides))  # rows= and columns=, or else those of the figure
        points = figure.points and said.get("rows", figure.points)
        column = None if "columns" in said else figure.column
        trained = attention_of.finished(figure.experiment, options.overrides, column, points=points)
        if figure.rows and "rows" not in said:
            trained.cells = [one for one in trained.cells if one[0] in figure.rows] or trained.cells
        write, how = DRAW[figure.draw](figure, options, trained)
        stems, caption = [place(trained.store.root)], f"{trained.title}; {trained.column.label}. {how}"
        data = write(stems[0], options.endings, caption)
    drawings = [stem.with_suffix(ending) for stem in stems for ending in options.endings]
    return [*(drawing for drawing in drawings if drawing.exists()), data]


def listed() -> str:
    """Help text: every figure with its title and experiment, and the command to run next."""
    lines = [f"  {name:22s} {figure.title}; cells of {figure.experiment}" for name, figure in FIGURES.items()]
    step = "Next: python scripts/reproduce.py EXPERIMENT with the same overrides trains the cells that a figure lacks"
    return "\n".join(["figures:", *lines, f"without cells: {', '.join(values_in('paper_figures'))}", "", step])


def _texts(figure: Figure, options: Options) -> tuple[Sequence[str], Sequence[str]]:
    """The user's own sentences, or those of the figure if there are none; empty if test examples are chosen."""
    if options.chosen:
        return (), ()
    if options.text and figure.second and len(options.text) != len(options.second):
        given = f"{len(options.text)} --text and {len(options.second)} --with"
        raise ValueError(f"{given}: this figure takes one --with for each --text")
    return (options.text, options.second) if options.text else (figure.text, figure.second)


def _stored(chosen: Sequence[int], attentions: Sequence[Mapping[str, Any]]) -> Sequence[int]:
    """Return `chosen`. Raises ValueError if a row has no stored attention for one of these examples."""
    if missing := [i for i in chosen if any(f"test/{i}" not in attention for attention in attentions)]:
        raise ValueError(f"no attention is stored for test examples {missing}; raise task.keep_attention and run again")
    return chosen


def _outputs(figure: Figure, options: Options, trained: Finished) -> tuple[Write, str]:
    """Draw the attention of each row's model while it writes its own output."""
    texts, _ = _texts(figure, options)
    if texts:
        examples, what = [attention_of.translated(trained, text) for text in texts], "A sentence chosen by hand"
    else:
        rows = attention_of.stored(trained)
        chosen = _stored(options.chosen, [weights for *_, weights in rows])
        examples = [attention.stored(rows, i) for i in chosen or attention.choose_sentences(rows, options.count)]
        what = "Test sentences"
    return partial(attention.write, examples), f"{what}; outputs of the models' own beam search."


def _forced(figure: Figure, options: Options, trained: Finished) -> tuple[Write, str]:
    """Draw the attention of rows, or of one row's grid points, while all models are forced to write the same output."""
    pairs = list(zip(*_texts(figure, options), strict=True))
    told = attention_of.examples(trained, options.chosen, "references")
    pairs += [(one["source"], one["references"][0]) for one in told]
    examples = [attention_of.forced(trained, *pair) for pair in pairs]
    return partial(attention.write, examples), "All forced to one output."


def _aligned(figure: Figure, options: Options, trained: Finished) -> tuple[Write, str]:
    """Draw how each row's model aligns two texts, with the structures used."""
    pairs = [(pair, "own pair") for pair in zip(*_texts(figure, options), strict=True)]
    pairs += [(tuple(one["texts"]), one["label"]) for one in attention_of.examples(trained, options.chosen, "texts")]
    examples = attention_of.aligned(trained, pairs)
    return partial(attention.write, examples), "Output (class); right: structures through the first text."


def _classified(figure: Figure, options: Options, trained: Finished) -> tuple[Write, str]:
    """Draw the attention of each row's model while it classifies a text or a pair of texts, one line per row."""
    texts = [side for side in _texts(figure, options) if side]
    if not texts:
        raise ValueError("this figure draws texts: give --text (and --with for the second text of a pair)")
    examples = [attention_of.classified(trained, given) for given in zip(*texts, strict=True)]
    return partial(attention.write, examples), "One line a row: mapping, predicted class."


def _images(figure: Figure, options: Options, trained: Finished) -> tuple[Write, str]:
    """Draw the attention of each row's model over images."""
    from tasks.data import open_data
    from tasks.draw import images

    rows, first = attention_of.stored(trained), trained.cells[0][1].config
    mappings = [cell.config["mapping"] for _, cell in trained.cells]
    panels = [images.panel(label, of, *kept) for of, (label, _, *kept) in zip(mappings, rows)]
    picture = images.pictures(open_data(first["data"], first["paths"]["data"]).about["images"])
    chosen = _stored(options.chosen, [panel.attention for panel in panels]) or images.choose(panels, options.count)
    how = "" if options.chosen else images.CHOICE
    return lambda stem, endings, _: images.write(panels, chosen, picture, stem, endings, how), how


def _documents(figure: Figure, options: Options, place: Callable[[Path], Path]) -> tuple[list[Path], Path]:
    """Plot scores against the settings of the generated documents; returns the paths without endings, and the file of numbers."""
    from tasks.draw import documents

    again = shlex.join(["python", "scripts/reproduce.py", figure.experiment, *options.overrides])
    (plan,) = reproduce.prepared(reproduce.outlined(Request.read(options.overrides, REPRODUCE, [figure.experiment])))
    store = reproduce.store_of(plan.slots)
    results = [(plan.experiment.rows[slot.row].label, slot.config, slot.results(store)) for slot in plan.slots]
    points = documents.collect((row, config, cell.metrics) for row, config, cell in results if cell is not None)
    if points.empty:
        raise ValueError(f"no cell is finished; run: {again}")
    files = documents.write(points, plan.experiment.paper, place(store.root).parent)
    return [file.with_suffix("") for file in files if file.suffix == ".svg"], files[-1]


DRAW = {"outputs": _outputs, "forced": _forced, "aligned": _aligned, "classified": _classified, "images": _images}
FIGURES = {name: Figure(**figure) for name, figure in values_in("figures").items()}
