"""The command-line grammar shared by all scripts: NAMES, key=value and --flags, derived from a function's signature.

    cell                   a required word, which may contain anything    python scripts/evaluate.py toy/sparsemax
    *names                 further words                                  python scripts/reproduce.py demo laha2018_table2
    *, nbest: int = 1      a value: --nbest 3, --nbest=3 or nbest=3; the signature has _ for a dot or dash in the name
       only: list[str]     several values: --only softmax sparsemax, or the option twice
       heat: bool = False  --heat
       overrides           every other key=value, +key=value and ~key, for Hydra

The docstring of a script is its help. A function with the parameter `arguments` parses the command line itself
(train.py does, with Hydra); a function with the parameter `help` prints additional help. Needs only Python's standard
library.
"""

import difflib
import inspect
import os
import re
import select
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

FAILED, WRONG, STOPPED, UNREAD = 1, 2, 130, 141
# Errors whose message is meant for the user, by class name: most scripts import neither store nor data.
EXPECTED = ("Refused",)


def command(main: Callable[..., int | None]) -> Callable[..., int]:
    """Turn `main` into a script, a function `run(arguments)`, and run it if its file is the one that Python was started with.

    `run` parses the arguments (default: `sys.argv`), calls `main` and returns the exit status: the value returned by
    `main` (0 if None), 1 if it failed, 2 for invalid arguments or an invalid configuration, 130 after Ctrl-C,
    141 if the pipe was closed early (`| head`), as for other commands.
    """
    wants = inspect.signature(main, eval_str=True).parameters
    text = main.__globals__["__doc__"]

    def run(arguments: list[str] | None = None) -> int:
        given = sys.argv[1:] if arguments is None else list(arguments)
        asked = {"-h", "--help"} & set(given)
        try:
            if asked:
                print(text)
            if "arguments" in wants:
                return main(given) or 0
            if asked and "help" not in wants:
                return 0
            names, options = parse(wants, [word for word in given if word not in asked])
            if asked:
                return main(*names, **options, help=True) or 0
            needed = [name.upper() for name, one in wants.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
            if len(names) < len(needed):
                print(f"{text}\nerror: {needed[len(names)]} is missing; see above what it may be", file=sys.stderr)
                return WRONG
            return main(*names, **options) or 0
        except KeyboardInterrupt:
            print("stopped; run the same command again to continue", file=sys.stderr, flush=True)
            sys.stdout.flush()
            from multiprocessing import util

            util._run_finalizers(0)  # otherwise Python 3.14 reports joblib's semaphores as leaked
            os._exit(STOPPED)  # fairseq's reader thread, if inside torch, would abort when the interpreter ends
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return WRONG
        except (OSError, RuntimeError) as error:
            if isinstance(error, BrokenPipeError) and _unread():
                return UNREAD
            if said := _full(error):
                print(f"error: {said}", file=sys.stderr)
                return FAILED
            if isinstance(error, RuntimeError) and not {c.__name__ for c in type(error).__mro__} & set(EXPECTED):
                raise
            print(f"error: {error}", file=sys.stderr)
            return FAILED

    if main.__module__ == "__main__":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # of a Latin-1 terminal
        status = run()
        try:
            sys.stdout.flush()
        except OSError as error:
            status = UNREAD if isinstance(error, BrokenPipeError) and _unread() else FAILED
            if said := _full(error):
                print(f"error: {said}", file=sys.stderr)
                _drop()
        sys.exit(status)
    return run


def _full(error: Exception) -> str:
    """What to say if an error came from a full disk and does not say so itself; else ""."""
    from repro.files import disk_full, explain

    if {c.__name__ for c in type(error).__mro__} & set(EXPECTED) or not disk_full(error):
        return ""
    return str(explain(error, getattr(error, "filename", None) or "a file or the output"))


def _drop() -> None:
    """Discard the rest of the output, or Python prints an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unread() -> bool:
    """Whether nothing reads standard output any more; if so, discard the rest, or Python prints an error at exit."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))
    if gone:
        _drop()
    return gone


def parse(wants: Mapping[str, inspect.Parameter], arguments: Iterable[str]) -> tuple[list[Any], dict[str, Any]]:
    """Parse a command line into its words and its options. Raises ValueError if it is invalid."""
    options = {n.strip("_"): p for n, p in wants.items() if p.kind is p.KEYWORD_ONLY and n not in ("overrides", "help")}
    needed = [p for p in wants.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    further = any(p.kind is p.VAR_POSITIONAL for p in wants.values())
    names: list[Any] = []
    overrides: list[str] = []
    given: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        name = re.sub("[-.]", "_", key.removeprefix("--"))
        if name in options and (word.startswith("--") or equals):
            kind = options[name].annotation
            if kind is bool:
                if equals:
                    raise ValueError(f"--{name} takes no value; leave ={value} out")
                values: Any = True
            else:
                several = typing.get_origin(kind) is list
                read = [value] if equals else words[:1]
                del words[: not equals]
                while several and not equals and not further and words and not re.match(r"--|[\w.]+=", words[0]):
                    read.append(words.pop(0))
                if not read:
                    raise ValueError(f"{word} needs a value")
                values = [_value(key, one, kind) for one in read]
                values = [*given.get(options[name].name, ()), *values] if several else values[-1]
            given[options[name].name] = values
        elif word.startswith("-") and word != "-":
            flags = [f"--{_spelt(n)}" for n in options]
            from tasks.config.request import settable  # needed for a wrong word only

            if "overrides" in wants and settable(key.lstrip("-")):
                value = "" if equals else f"={words[0]}" if words and "=" not in words[0] else "=VALUE"
                setting = word.lstrip("-") + value
                raise ValueError(f"{key} is unknown here; write {setting}, without dashes; -h prints the help")
            raise ValueError(_unknown(key, flags))
        elif len(names) < len(needed):
            names.append(_value(needed[len(names)].name.upper(), word, needed[len(names)].annotation))
        elif (equals or word[:1] in ("+", "~")) and "overrides" in wants:
            overrides.append(word)
        elif equals:
            known = [f"{_spelt(n)}=" for n, p in options.items() if p.annotation is not bool]
            raise ValueError(_unknown(f"{key}=", known))
        elif further:
            names.append(word)
        else:
            settings = "; write settings as KEY=VALUE, such as task=toy" if "overrides" in wants else ""
            raise ValueError(f"unexpected argument {word!r}{settings}; -h prints the help")
    if missing := [n for n, p in options.items() if p.default is p.empty and p.name not in given]:
        raise ValueError(f"--{missing[0]} is missing; -h prints the help")
    return names, given | ({"overrides": overrides} if "overrides" in wants else {})


def _spelt(name: str) -> str:
    return name.replace("paths_", "paths.").replace("_", "-")


def _unknown(what: str, known: list[str]) -> str:
    found = difflib.get_close_matches(what, known, n=1)
    near = f" (did you mean {found[0]!r}?)" if found else ""
    return f"{what} is unknown here{near}; there are: {', '.join(known) or 'none'}; -h prints the help"


def _value(key: str, text: str, kind: Any) -> Any:
    """Convert `text` to `kind`: `int`, `float`, `str`, `Path`, a `Literal`, or the item type of a `list` of these."""
    if typing.get_origin(kind) in (list, types.UnionType, typing.Union):
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is typing.Literal:
        if text not in typing.get_args(kind):
            raise ValueError(_unknown(f"{key}={text}", [f"{key}={k}" for k in typing.get_args(kind)]))
        return text
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{key}={text} must be a {'whole ' * (kind is int)}number") from None
