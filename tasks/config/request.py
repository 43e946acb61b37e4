"""A command line, read once: what is to be run, and the overrides of its configuration. Needs no torch.

    request = Request.read(["task=toy", "mapping=softmax,fusedmax", "seed=1,2", "sweep=mine"], TRAIN, many=True)
    request.sweep, request.overrides            "mine", ("task=toy", "mapping=softmax,fusedmax", "seed=1,2")
    request.keys["mapping"].texts               ("mapping=softmax", "mapping=fusedmax")

`Override` is one KEY=VALUE as Hydra's parser reads it, typed or from a file of configs/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from repro.errors import ConfigError, near, short
from repro.store import outputs_folder
from tasks.config.files import CONFIGS, NAME, NODES, TOP, names_in, quoted

if TYPE_CHECKING:  # Hydra is imported where an override is parsed; using a model needs none
    from hydra.core.override_parser.types import Override as Parsed

# The commands' own keys; everything else is a key of the configuration.
TRAIN = ("sweep", "grid")
REPRODUCE = ("profile", "seeds", "add", "rows", "columns", "lease", "minutes")
GRIDS = ("paper",)  # the grid of each mapping's configuration file
# Keys under these prefixes are chosen by the user and can be deleted; every other key is needed.
DELETABLE = ("mapping.at.", "mapping.grid.", "task.tune.parameters.", "hydra")
PATHS = (
    "data.path",
    "data.mirror",
    "encode.vectors",
    "paths.data",
    "paths.outputs",
)  # keys whose values are files or folders
WORD = re.compile(r"[^,\[\]{}():=]*[^\x00-\x7f][^,\[\]{}():=]*")  # a word with a letter that Hydra's parser rejects
SPELLED = re.compile(r"([+~]*)([^=]*)=(.*)", re.S)
DECIMALS = 12  # of the values of a range
OPTUNA = "hydra/sweeper=optuna"
UNREADABLE = "cannot be read; write KEY=VALUE, +KEY=VALUE or GROUP=NAME, and put lists, mappings and special characters in quotes"


@dataclass(frozen=True)
class Override:
    """An override of the configuration: KEY=VALUE, GROUP=NAME, +KEY=VALUE or ~KEY.

    Attributes:
        text: as typed.
        parsed: as Hydra's parser read it.
    """

    text: str
    parsed: Parsed = field(compare=False)

    @property
    def key(self) -> str:
        """The key or group, such as `train.max_epochs` or `mapping`."""
        return self.parsed.key_or_group + (f"@{self.parsed.package}" if self.parsed.package else "")

    @property
    def node(self) -> str:
        """The top-level node that is chosen or changed."""
        return self.key.partition(".")[0]

    @property
    def adds(self) -> bool:
        """True if it may add a key that is in no file, as +KEY=VALUE."""
        return self.parsed.is_add() or self.parsed.is_force_add()

    @property
    def several(self) -> bool:
        """True if it has several values, as a,b or range(1,5)."""
        return self.parsed.is_sweep_override()

    @property
    def glob(self) -> bool:
        """True if its values come from a glob pattern."""
        from hydra.core.override_parser.types import Glob

        return isinstance(self.parsed.value(), Glob)

    @property
    def chooses(self) -> bool:
        """True if it chooses a config file or configures Hydra itself."""
        if self.parsed.package is not None or self.parsed.is_hydra_override():
            return True
        return (CONFIGS / self.parsed.key_or_group).is_dir() and not isinstance(self.parsed.value(), dict)

    @property
    def value(self) -> Any:
        """The value. Raises ConfigError if there are several."""
        if self.several:
            raise ConfigError(f"{self.text!r} has several values; scripts/train.py -m runs them one after another")
        return self.parsed.value()

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Each value as text; the syntax is that of Hydra's sweeper: a,b choice(a,b) range(1,5) glob(*) sort(...).

        Raises ConfigError for an interval, and for a pattern that matches nothing.
        """
        if not self.several:
            return (self.parsed.get_value_string(),)
        if not self.parsed.is_discrete_sweep():
            told = f"is an interval, which only {OPTUNA} can search; list the values, as KEY=1,2,3"
            raise ConfigError(f"{self.text!r} {told}")
        if found := tuple(dict.fromkeys(self._range(self.parsed.sweep_string_iterator()))):
            return found
        known = f"; configs/{self.key} has: {', '.join(names_in(self.key))}" if self.glob else ": it has no values"
        raise ConfigError(f"{self.text!r} matches nothing{known}")

    def _range(self, texts: Iterable[str]) -> Iterator[str]:
        """The values of a range of floats without the rounding errors of sums, below its end: 0.3, not 0.30000000000000004."""
        from hydra.core.override_parser.types import RangeSweep

        swept = self.parsed.value()
        exact = not isinstance(swept, RangeSweep) or all(
            isinstance(n, int) for n in (swept.start, swept.stop, swept.step)
        )
        for text in texts:
            value = text if exact else str(round(float(text), DECIMALS) + 0.0)  # -0.0 would be another value
            if exact or (float(value) < swept.stop if swept.step > 0 else float(value) > swept.stop):
                yield value

    @cached_property
    def each(self) -> tuple[Override, ...]:
        """One override for each value."""
        if not self.several:
            return (self,)
        return tuple(parsed(f"{self.parsed.get_key_element()}={value}") for value in self.values)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of `each`."""
        return tuple(one.text for one in self.each)

    def problems(self, own: Iterable[str] = ()) -> list[str]:
        """Why it cannot be used: it deletes a key that every configuration needs, or chooses a file that does not exist.

        `own` are the mappings that plugins register.
        """
        if self.parsed.is_delete():
            fine = self.key.startswith(DELETABLE)
            told = f"~{self.key} is invalid: every configuration needs this key; set it, as {self.key}=..."
            return [] if fine else [told]
        listed = not self.several or self.parsed.is_discrete_sweep()  # otherwise `values` raises the error
        if self.parsed.is_hydra_override() or not self.chooses or self.parsed.package is not None or not listed:
            return []
        chosen = list(self.parsed.sweep_iterator()) if self.several else [self.parsed.value()]
        if self.key == "logger":  # of which several files may be chosen
            chosen = [name for one in chosen for name in (one if isinstance(one, list) else [one])]
        known = [*names_in(self.key), *(own if self.key == "mapping" else ())]
        there = f"configs/{self.key} has: {', '.join(names_in(self.key)) or 'nothing'}"
        if self.key == "mapping":
            there += f"; plugins has: {', '.join(own)}" if own else "; one of your own needs plugins=[FILE.py]"
        wrong = [name for name in chosen if name not in known]
        return [f"{self.key}={short(name)} is unknown{near(name, known)}; {there}" for name in wrong]


@lru_cache(4096)
def parsed(text: str) -> Override:
    """Read one override. Raises ConfigError if Hydra's parser cannot read it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    files: Any = SimpleNamespace(get_group_options=lambda group, results_filter=None: names_in(group))  # of a glob
    try:
        (one,) = OverridesParser.create(config_loader=files).parse_overrides([spelled(text)])
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{text[:200]!r} {UNREADABLE}") from error
    if not one.key_or_group:
        raise ConfigError(f"{text[:200]!r} {UNREADABLE}")
    return Override(text, one)


def parse(texts: Iterable[str]) -> list[Override]:
    """Read overrides. Raises ConfigError, with all problems, if one cannot be read or used (`Override.problems`)."""
    found = [parsed(text) for text in texts]
    own = own_mappings(found)
    if problems := [problem for one in found for problem in one.problems([n for n in own if n != "custom"])]:
        raise ConfigError(problems)
    return found


def own_mappings(overrides: Iterable[Override]) -> dict[str, list[str]]:
    """The mappings of the user's plugins, name -> parameters; also "custom" if `mapping.name` says which that is.

    Runs the plugins, which the command names, if `mapping` has a name that is not in configs/mapping, or custom. Raises
    ValueError as `plugins.load` does.
    """
    last = {one.key: one for one in overrides}
    files = last.get("plugins")
    chosen = last["mapping"].values if "mapping" in last and last["mapping"].chooses else ()
    if files is None or files.several or {*chosen} <= {*names_in("mapping")} - {"custom"}:
        return {}
    from repro import plugins

    plugins.load(plugins.listed(files.value))
    import sparse_attention as sa  # imports torch, so only here

    found = {name: [one.name for one in sa.spec(name).params] for name in sa.names()}
    named = last.get("mapping.name")
    custom = {"custom": found[named.value]} if named and not named.several and named.value in found else {}
    return {name: keys for name, keys in found.items() if name not in names_in("mapping")} | custom


def spelled(text: str) -> str:
    """An override as Hydra's parser reads it.

    Quotes values with special or non-ASCII characters; ``mapping.at.PLACE=NAME`` sets the mapping's name.
    """
    if (parts := SPELLED.fullmatch(text)) is None:
        return text
    sign, key, value = parts.groups()
    if place := re.fullmatch(r"mapping\.at\.\w+(\.\w+)?", key) if not sign else None:
        sign, key = "++", key if place[1] or value.startswith("{") else f"{key}.name"  # no file has the place
        text = f"{sign}{key}={value}"
    several = "," in value and not (key.startswith("paths.") or Path(value).exists())
    if key in PATHS and not several and not re.search(r"""^(null)?$|^["'[{]|\$\{|^[a-z]+\(.*\)$""", value):
        return f"{sign}{key}={quoted(os.path.expanduser(value))}"
    if value.isascii() or re.search("[\"']", value):
        return text
    return f"{sign}{key}={re.sub(WORD, lambda word: quoted(word[0].strip()), value)}"


@dataclass(frozen=True)
class Request:
    """What a command line asks for.

    Attributes:
        names: experiments.
        overrides: of the configuration, as typed and in this order.
        profile: size of the experiments.
        seeds: of the experiments; empty means their own.
        rows, columns: patterns of the rows and columns of an experiment; empty means all.
        add: further rows, each as NAME,KEY=VALUE,...
        sweep: name of the sweep, or empty.
        grid: `paper` for each mapping's own grid, or empty.
        lease: folder of the records of a run that has a limited time, or empty. minutes: that time.
        plan: True if only the number of cells and the hours are requested.
        many: True if the cells are those of a sweep.
        typed: the words as typed, those of the command included.
    """

    names: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    profile: str = "demo"
    seeds: tuple[int, ...] = ()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    sweep: str = ""
    grid: str = ""
    lease: str = ""
    minutes: float = 0.0
    plan: bool = False
    many: bool = False
    typed: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(
        cls,
        arguments: Sequence[str],
        own: Sequence[str] = (),
        names: Sequence[str] = (),
        plan: bool = False,
        many: bool = False,
    ) -> Request:
        """Read the words of a command line that have a key.

        Args:
            arguments: the words.
            own: the command's own keys, TRAIN or REPRODUCE.
            names, plan, many: what was read before.

        Raises:
            ConfigError: a word is no override, or a value of the command's own keys is invalid.
        """
        words: dict[str, list[str]] = {}
        rest = []
        for word in arguments:
            if "=" not in word and not word.startswith("~"):
                raise ConfigError(f"{short(word)} {UNREADABLE}")
            key, _, text = word.partition("=")
            if key in own:
                words.setdefault(key, []).append(text)
            else:
                rest.append(word)
        last = {key: texts[-1] for key, texts in words.items()}
        if (grid := last.get("grid", "paper")) not in GRIDS:
            raise ConfigError(f"grid={grid} is unknown{near(grid, GRIDS)}; allowed: {', '.join(GRIDS)}")
        if not NAME.fullmatch(last.get("sweep", "-")):
            rule = "a name of up to 64 letters, digits, - and _ (it also names a folder)"
            raise ConfigError(f"sweep={short(last['sweep'])} must be {rule}")
        minutes = last.get("minutes", "")
        if ("lease" in last) != bool(minutes) or (minutes and not re.fullmatch(r"\d+(\.\d*)?", minutes)):
            told = f"lease=FOLDER and minutes=N belong together, N at least 0; got minutes={minutes or 'nothing'}"
            raise ConfigError(told)
        read: dict[str, Any] = {key: last[key] for key in ("profile", "sweep", "grid", "lease") if key in last}
        read |= {key: tuple(last[key].split("|")) for key in ("rows", "columns") if key in last}
        read |= {"seeds": whole(last["seeds"])} if "seeds" in last else {}
        read |= {"add": tuple(words.get("add", ())), "minutes": float(minutes or 0), "plan": plan, "many": many}
        return cls(tuple(names), tuple(rest), **read, typed=tuple(arguments))

    @cached_property
    def keys(self) -> dict[str, Override]:
        """Key -> its last override. Raises ConfigError as `parse` does."""
        found: dict[str, Override] = {}
        for one in parse(self.overrides):
            found.pop(one.key, None)
            found[one.key] = one
        return found

    @property
    def outputs(self) -> Path:
        """The folder of outputs that is named, or the default one."""
        return Path(self.keys["paths.outputs"].value if "paths.outputs" in self.keys else outputs_folder())

    @property
    def optuna(self) -> bool:
        """True if optuna chooses the values of a sweep.

        Raises ConfigError if options of Hydra, or of our sweeps, are set where they have no effect.
        """
        theirs = [one.text for one in self.keys.values() if one.parsed.is_hydra_override()]
        for text in (text for text in self.typed if text.startswith(tuple(f"{key}=" for key in TRAIN))):
            if not self.many or (theirs and not text.startswith("sweep=")):
                why = f"{theirs[0]} gives the sweep to Hydra, which knows" if theirs else "only a sweep (-m) knows"
                no = "no " if theirs else ""
                raise ConfigError(f"{text} is not available here: {why} {no}{text.partition('=')[0]}=")
        if theirs and not (self.many and OPTUNA in [text.lstrip("+") for text in theirs]):
            raise ConfigError(f"{theirs[0]} is an option of Hydra, which is only used by -m {OPTUNA}; leave it out")
        if theirs and self.plan:
            raise ConfigError(f"--plan is not available here: {theirs[0]} gives the command to Hydra")
        return bool(theirs)


def settable(key: str) -> bool:
    """Whether a command may take KEY=VALUE: a group or key of the configuration, or a command's own key."""
    return key.partition(".")[0] in (*NODES, *TOP, "setting", *TRAIN, *REPRODUCE)


def whole(text: str) -> tuple[int, ...]:
    """The seeds 1,2,3, each once. Raises ConfigError unless they are whole numbers."""
    try:
        return tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        raise ConfigError(f"seeds={text} must be whole numbers, as in seeds=1,2,3") from None
