"""The papers' figures that are drawn from trained cells: the cells, the drawing, and what the published figure shows.

A figure is written to <outputs>/figures/<experiment>/<figure>_<profile>.svg, together with a file of its numbers (.json
or .csv) and a file with the text that the report of the experiment shows about it (.about.json).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.report.placed import note
from repro.store import Store
from tasks.commands import attending, reproduce
from tasks.commands.attending import Finished


@dataclass
class Asked:
    """Options given for a figure; an empty option means the figure's default.

    Attributes:
        test: numbers of test examples.
        text: the user's own texts.
        second: for each text, the second text of the pair, or the output that every row is forced to write.
        endings: file types to write.
    """

    overrides: Sequence[str] = ()
    experiment: str = ""
    count: int = 2
    test: Sequence[int] = ()
    text: Sequence[str] = ()
    second: Sequence[str] = ()
    endings: Sequence[str] = (".svg",)


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
    """A figure of a paper.

    Attributes:
        published: what the paper's figure shows, according to the paper's text.
        experiment: the experiment whose cells are drawn by default.
        text, second: our own sentences, which are drawn by default.
    """

    title: str
    published: str
    experiment: str
    draw: Callable[[Figure, Asked, Callable[[Finished], Path]], list[Drawn]]
    rows: Sequence[str] = ()
    column: str | None = None
    text: Sequence[str] = ()
    second: Sequence[str] = ()
    points: str = ""  # the row whose finished grid points are drawn instead of rows; rows= selects another row


def make(name: str, asked: Asked, out: Path | None = None) -> list[Path]:
    """Draw one of FIGURES and write the text that the report shows about it.

    Returns:
        the files that were written.

    Raises:
        ValueError: a name or option is invalid.
        DataUnavailable: cells are not finished.
    """
    figure = FIGURES[name]
    if asked.text and figure.draw in (_images, _documents):
        raise ValueError(f"--text is not for {name}, which draws test examples")
    if asked.second and not (figure.second and asked.text):
        raise ValueError(f"--with goes with --text, in {', '.join(n for n, f in FIGURES.items() if f.second)}")
    experiment = asked.experiment or figure.experiment
    profile = next((o[8:] for o in reversed(asked.overrides) if o.startswith("profile=")), "demo")
    files = []

    def place(outputs: str | Path) -> Path:
        folder = out or Path(outputs) / "figures" / experiment
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}_{profile}"

    for drawn in figure.draw(figure, asked, place):
        about = note(drawn.stem, figure.title, drawn.caption, figure.published, profile, drawn.data, drawn.cells)
        files += [
            *(drawn.stem.with_suffix(e) for e in asked.endings if drawn.stem.with_suffix(e).exists()),
            drawn.data,
            about,
        ]
    return files


def listed() -> str:
    """Help text: every figure with its title and experiment, and the command to run next."""
    lines = [f"  {name:22s} {figure.title}; cells of {figure.experiment}" for name, figure in FIGURES.items()]
    return "\n".join(
        [
            "figures:",
            *lines,
            "",
            "Next: python scripts/reproduce.py EXPERIMENT with the same overrides, before (the cells) and after (the report)",
        ]
    )


def draw(names: Sequence[str], asked: Asked, test: str, out: Path | None) -> list[Path]:
    """Draw the figure named on a command line.

    Args:
        names: name of the figure, optionally followed by another experiment that has suitable cells.
        test: numbers of test examples, separated by commas.

    Raises:
        ValueError, DataUnavailable: as in `make`.
    """
    if not names or names[0] not in FIGURES or len(names) > 2:
        raise ValueError(f"{' '.join(names) or 'no name'} is no figure; there are: {', '.join(FIGURES)}")
    if asked.count < 1:
        raise ValueError(f"--count {asked.count} draws nothing; give at least 1")
    try:
        asked.test = [int(number) for number in test.split(",") if number]
    except ValueError:
        raise ValueError(f"--test {test} must be numbers of test examples, as 3,17") from None
    return make(names[0], asked, out)


def _finished(figure: Figure, asked: Asked) -> Finished:
    """The finished cells of the rows and column chosen by `rows=` and `columns=`, or else of the figure."""
    said = {o.partition("=")[0]: o.partition("=")[2] for o in asked.overrides}
    points = figure.points and said.get("rows", figure.points)
    column = None if "columns" in said else figure.column
    of = attending.finished(asked.experiment or figure.experiment, asked.overrides, column, points=points)
    if figure.rows and "rows" not in said:
        of.cells = [(label, cell) for label, cell in of.cells if label in figure.rows] or of.cells
    return of


def _texts(figure: Figure, asked: Asked) -> tuple[Sequence[str], Sequence[str]]:
    """The user's own sentences, or those of the figure if there are none; empty if test examples are chosen."""
    if asked.test:
        return (), ()
    if asked.text and figure.second and len(asked.text) != len(asked.second):
        raise ValueError(
            f"{len(asked.text)} --text and {len(asked.second)} --with: this figure takes one --with for each --text"
        )
    return (asked.text, asked.second) if asked.text else (figure.text, figure.second)


def _written(module, examples, of: Finished, stem: Path, caption: str, asked: Asked) -> list[Drawn]:
    module.draw(examples, [stem.with_suffix(e) for e in asked.endings], caption)
    module.write_data(examples, stem.with_suffix(".json"), caption)
    return [Drawn(stem, caption, stem.with_suffix(".json"), [cell.training_id for _, cell in of.cells])]


def _outputs(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Draw the attention of each row's model while it writes its own output."""
    from tasks.seq2seq import figures

    of = _finished(figure, asked)
    texts, _ = _texts(figure, asked)
    if texts:
        examples, what = [attending.translated(of, text) for text in texts], "Your own sentence"
    else:
        rows = attending.stored(of)
        chosen = _stored(asked.test, [{int(k[5:]) for k in a if k.startswith("test/")} for *_, a in rows])
        examples = [figures.example(rows, i) for i in chosen or figures.choose(rows, asked.count)]
        what = "Test sentences"
    caption = f"{of.title}; {of.column.label}. {what}; outputs of the models' own beam search."
    return _written(figures, examples, of, place(of.outputs), caption, asked)


def _stored(wanted: Sequence[int], stored: Sequence[set[int]]) -> Sequence[int]:
    """Return `wanted`. Raises ValueError if a row has no stored attention for one of these examples."""
    if missing := [i for i in wanted if any(i not in one for one in stored)]:
        raise ValueError(f"no attention is stored for {missing}; raise task.keep_attention and run again")
    return wanted


def _forced(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Draw the attention of rows, or of one row's grid points, while all models are forced to write the same output."""
    from tasks.seq2seq import figures

    of = _finished(figure, asked)
    pairs = list(zip(*_texts(figure, asked), strict=True))
    if not pairs:
        chosen = asked.test or figures.choose(attending.stored(of), 1)
        pairs = [attending.stored_sentence(of, i) for i in chosen]
    examples = [attending.forced(of, *pair) for pair in pairs]
    caption = f"{of.title}; {of.column.label}. All forced to one output."
    return _written(figures, examples, of, place(of.outputs), caption, asked)


def _aligned(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Draw how each row's model aligns two texts, with the structures used."""
    from tasks.classification import figures

    of = _finished(figure, asked)
    pairs = [(pair, "own pair") for pair in zip(*_texts(figure, asked), strict=True)] or attending.stored_pairs(
        of, asked.count
    )
    caption = f"{of.title}; {of.column.label}. Output (class); right: structures through the first text."
    return _written(figures, attending.aligned(of, pairs), of, place(of.outputs), caption, asked)


def _classified(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Draw the attention of each row's model while it classifies a text or a pair of texts, one line per row."""
    from tasks.seq2seq import figures

    of = _finished(figure, asked)
    examples = [attending.classified(of, given) for given in zip(*(t for t in _texts(figure, asked) if t), strict=True)]
    if not examples:
        raise ValueError(
            "this figure draws texts, not test examples: --text (and --with, for the second text of a pair)"
        )
    caption = f"{of.title}; {of.column.label}. One line a row: mapping, predicted class."
    return _written(figures, examples, of, place(of.outputs), caption, asked)


def _images(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Draw the attention of each row's model over images."""
    from tasks.data import open_data
    from tasks.vqa import figures

    of = _finished(figure, asked)
    panels = []
    for label, cell in of.cells:
        test = of.test(cell)
        panels.append(
            figures.read_panel(label, cell.config["mapping"], test.predictions(), test.path("attention.safetensors"))
        )
    first = of.cells[0][1].config
    picture = figures.pictures(open_data(first["data"], first["paths"]["data"]).about["images"])
    stored = [{int(k[5:]) for k in p.attention if k.startswith("test/")} for p in panels]
    chosen = _stored(asked.test, stored) or figures.choose(panels, asked.count)
    stem, caption = place(of.outputs), "" if asked.test else figures.CHOICE
    figures.draw(panels, chosen, picture, [stem.with_suffix(e) for e in asked.endings], caption)
    told = [
        {"question": q, "asked": panels[0].records[q]["source"], "rows": [
            {"label": p.label, "output": p.records[q]["output"], "weights": [round(v, 6) for v in p.attention[f"test/{q}"].flatten().tolist()]}
            for p in panels
        ]} for q in chosen
    ]  # fmt: skip
    data = stem.with_suffix(".json")
    data.write_text(json.dumps({"about": caption, "questions": told}, ensure_ascii=False) + "\n", encoding="utf-8")
    return [Drawn(stem, f"{of.title}; {of.column.label}. {caption}", data, [cell.training_id for _, cell in of.cells])]


def _documents(figure: Figure, asked: Asked, place) -> list[Drawn]:
    """Plot scores against the settings of the generated documents, over all finished cells."""
    from tasks.multilabel import figures

    planned = reproduce.plan([asked.experiment or figure.experiment], asked.overrides)
    (made,), store = planned.plans, Store(planned.outputs)
    found = [(made.experiment.rows[s.row].label, s.cell.config, s.cell.found(store)) for s in made.slots]
    points = figures.collect((row, config, one.metrics) for row, config, one in found if one is not None)
    if not points:
        raise ValueError(f"no cell is finished; run: python scripts/reproduce.py {made.experiment.name}")
    stem = place(planned.outputs)
    files = figures.write(points, made.experiment.paper, stem.parent)
    caption = f"{made.experiment.title}. {sum(one is not None for *_, one in found)} of {len(found)} cells."
    numbers = next(f for f in files if f.suffix == ".csv")
    cells = [slot.cell.training_id for slot in made.slots]
    return [Drawn(f.with_suffix(""), caption, numbers, cells) for f in files if f.suffix == ".svg"]


FIGURES = {
    "niculae2017_figure1": Figure(
        "Niculae & Blondel 2017, Figure 1",
        "attention of softmax, sparsemax and fusedmax in sentence summarization: input across, summary down, grey exactly 0, no border between neighbours of "
        "equal weight; fusedmax attends to contiguous segments", "niculae2017_table2", _outputs, ("softmax", "sparsemax", "fusedmax"),
        text=("this program is a simple text editor for the desktop with support for many languages",),
    ),
    "niculae2017_figure3": Figure(
        "Niculae & Blondel 2017, Figure 3",
        "attention of softmax, sparsemax, fusedmax and oscarmax to a text about a band playing on stage, given the hypothesis that no one is dancing; all four say "
        "contradiction, fusedmax attends to a segment of three words", "niculae2017_table1", _classified,
        text=("a choir is singing in the old church and the guests are clapping their hands to the song",), second=("nobody is clapping .",),
    ),
    "niculae2017_figure4": Figure(
        "Niculae & Blondel 2017, Figure 4",
        "attention for French to English translation, drawn as Figure 1, words that oscarmax puts into one cluster with a dot; oscarmax finds a slightly more natural "
        "translation", "niculae2017_nmt", _outputs, text=("un chien brun court dans la neige avec un bâton dans la gueule .",),
    ),
    "laha2018_figure4": Figure(
        "Laha et al. 2018, Figures 4 and 5, JSD curves of App. A.7.1",
        "predicted labels, F1 and Jensen-Shannon divergence of four pairs of mapping and loss on generated documents; no value is printed", "laha2018_figure5", _documents,
    ),
    "laha2018_figure8": Figure(
        "Laha et al. 2018, Figure 8 (App. A.8)",
        "attention heat maps of sparsegen-lin in translation; with larger lambda they are crisper, fewer columns a row have weight", "laha2018_table2", _forced,
        points="sparsegen-lin", text=("un chien brun court dans la neige avec un bâton dans la gueule .",),
        second=("a brown dog runs through the snow with a stick in its mouth .",),
    ),
    "laha2018_figure9": Figure(
        "Laha et al. 2018, Figure 9 (App. A.8)", "the same in summarization", "laha2018_table2", _forced, points="sparsegen-lin", column="summarization_demo",
        text=("this program is a simple text editor for the desktop with support for many languages",),
        second=("simple text editor for many languages",),
    ),
    "martins2020_figure2": Figure(
        "Martins et al. 2020, Figure 2",
        "attention of a German to English translation: discrete, continuous softmax, continuous sparsemax; means close to the diagonal", "martins2020_nmt", _outputs,
    ),
    "martins2020_figure3": Figure(
        "Martins et al. 2020, Figure 3",
        "attention over an image for one question: discrete attention is scattered, the two continuous ones lie on the right region and the answer is right", "martins2020_table2", _images,
    ),
    "peters2018_figure1": Figure(
        "Peters et al. 2018, Figure 1", "attention of fusedmax, softmax and sparsemax for one compression of a sentence", "niculae2017_table2", _forced,
        ("softmax", "sparsemax", "fusedmax"), text=("utility for viewing and editing digital photographs on the desktop",), second=("photo viewer and editor",),
    ),
    "peters2018_figure2": Figure(
        "Peters et al. 2018, Figure 2", "structured alignments of a pair of SNLI and the structures that they are averages of", "peters2018_snli", _aligned,
        text=("two children draw a big blue house with chalk .",), second=("children are drawing a house .",),
    ),
}  # fmt: skip
