"""Options of data sets. A set has the options that `configs/data/<name>.yaml` names, with the defaults that stand there.

What the values of an option may be stands in `FIELDS`, or in the loader if the option is the set's own.
"""

from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from repro.errors import ConfigError
from repro.options import choice, integer, listing, number, text
from tasks.config.files import defaults, values_in
from tasks.data.records import Pair

SIDES = ("source", "target")


@defaults("data/toy", "limits")
class Limits:
    """Maximum number of records per split (the first ones are kept); null means all."""

    train: int | None = integer(low=1, optional=True, help="training records")
    dev: int | None = integer(low=1, optional=True, help="dev records")
    test: int | None = integer(low=1, optional=True, help="test records")

    def of(self, split: str) -> int | None:
        return getattr(self, split)


@defaults("data/multi30k", "max_words")
class Words:
    """Fewest or most whitespace-separated words of a text; null means no limit."""

    source: int | None = integer(low=1, optional=True, help="words of a source")
    target: int | None = integer(low=1, optional=True, help="words of a target")


FIELDS: dict[str, Any] = {  # option -> a field, or the type of its values
    "path": text(optional=True, help="the file or folder with the data; null: what was fetched"),
    "mirror": text(optional=True, help="folder of local copies, laid out as the manifest says"),
    "limits": Limits,
    "min_words": Words,
    "max_words": Words,
    "fallback": choice("toy", optional=True, help="generated pairs when the text is unavailable; null: an error"),
    "dev_share": number(above=0, below=1, help="share of the training data that is dev"),
    "seed": integer(low=0, help="seed of generated data"),
    "image_size": listing(integer(low=1), length=2, help="height and width that pixels are resized to"),
    "input": choice("pixels", "none", help="pixels: read by the model's CNN; none: only questions"),
}


def languages(*allowed: str) -> dict[str, Any]:
    """The fields of the two languages of a data set."""
    return {f"{side}_lang": choice(*allowed, help="language code") for side in SIDES}


def different(options: Any) -> list[str]:
    """Problems of the combination of the two languages, if there are two."""
    if getattr(options, "source_lang", None) != getattr(options, "target_lang", ""):
        return []
    step = "set source_lang and target_lang to two different languages"
    return [f"target_lang={options.target_lang!r} is the source's language too; {step}"]


class Common:
    """What loaders ask of options that have the keys."""

    def about(self: Any) -> dict[str, str]:
        """The languages, as the `about` of a data set of translations."""
        return {"source_lang": self.source_lang, "target_lang": self.target_lang}

    def bounds(self: Any) -> list[Any]:
        """The limits on the number of words, for a fingerprint."""
        return [asdict(self.min_words), asdict(self.max_words)]

    def within(self: Any, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs whose source and first reference have an allowed number of whitespace-separated words."""

        def fits(text: str, side: str) -> bool:
            low, high = getattr(self.min_words, side), getattr(self.max_words, side)
            n = len(text.split())
            return (low is None or n >= low) and (high is None or n <= high)

        return [p for p in pairs if fits(p.source, "source") and fits(p.references[0], "target")]

    def shortfall(self: Any) -> list[str]:
        """A shortfall if pairs may be left out because of their number of words, otherwise an empty list."""
        each = (("at least", asdict(self.min_words)), ("at most", asdict(self.max_words)))
        parts = [f"{what} {n} words a {side}" for what, bound in each for side, n in bound.items() if n is not None]
        return [f"only pairs of {', '.join(parts)}"] if parts else []


@lru_cache(64)
def options_of(name: str, loader: Any) -> type:
    """The class of the options of a data set with this `tasks.data.dataset.Loader`."""
    known, file = FIELDS | loader.own, f"data/{name}"
    if strange := [key for key in values_in(file) if key != "name" and key not in known]:
        what = f"configs/{file}.yaml: {strange[0]} is an option of no data set"
        raise ConfigError(f"{what}; give what it accepts in the Loader of the set, see docs/extending.md")
    own = {key: known[key] for key in values_in(file) if key != "name"}
    types = {key: field if isinstance(field, type) else Any for key, field in own.items()}
    fields = {key: field for key, field in own.items() if not isinstance(field, type)}
    made = type(name, (Common,), fields | {"__annotations__": types, "problems": lambda self: loader.check(self)})
    return defaults(file)(made)
