"""The scripts' command lines: argparse, with the options that a function's signature declares.

    cell                   a required word                              python scripts/evaluate.py toy/sparsemax
    *names                 further words                                python scripts/reproduce.py demo laha2018_table2
    *, nbest: int = 1      a value: --nbest 3, --nbest=3 or nbest=3; _ in the signature is a dash, and in paths_ a dot
       only: list[str]     several values: --only softmax sparsemax, or the option twice
       heat: bool = False  --heat
       overrides           every other key=value, +key=value and ~key, for Hydra

The docstring of a script is its help. A function with the parameter `help` prints additional help. Needs only Python's
standard library.
"""

import inspect
import os
import pkgutil
import re
import select
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FAILED, WRONG, STOPPED, UNREAD = 1, 2, 130, 141
EXPECTED = "Refused"  # the class of errors whose message is for the user, here and in the library
SHORT = {"multirun": ("-m",)}
HELP = {"-h", "--help"}
_SETTING = re.compile(r"[a-z_.]+=")  # begins KEY=VALUE

Main = Callable[..., int | None]


def command(main: Main) -> Callable[..., int]:
    """Turn `main` into a script (`commands`) that does one thing."""
    return _script(main.__globals__, {"": main})


def commands(script: Mapping[str, Any], module: str, *words: str) -> Callable[..., int]:
    """A script whose first word names what it does: a function `run(arguments)`, which runs if Python was started with the script.

    `run` parses the arguments (default: `sys.argv`), calls the function and returns the exit status: the value that it
    returns (0 if None), 1 if it failed, 2 for invalid arguments or an invalid configuration, 130 after Ctrl-C, 141 if the
    pipe was closed early (`| head`), as for other commands.

    Args:
        script: the globals of the script, for its docstring and name.
        module: where the functions are; it is imported only to call one of them.
        words: their names; a `_` behind is no part of the word.
    """
    return _script(script, {word.strip("_"): f"{module}:{word}" for word in words})


def _script(script: Mapping[str, Any], mains: Mapping[str, Main | str]) -> Callable[..., int]:
    def run(arguments: list[str] | None = None) -> int:
        given = sys.argv[1:] if arguments is None else list(arguments)
        try:
            status = _called(str(script["__doc__"]), mains, given)
            sys.stdout.flush()
            return status
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
            from repro.files import disk_full, explain

            expected, told = EXPECTED in [c.__name__ for c in type(error).__mro__], str(error)
            if not expected and disk_full(error):  # and the error may not say so itself
                told = str(explain(error, getattr(error, "filename", None) or "a file or the output"))
                _drop()
            elif isinstance(error, RuntimeError) and not expected:
                raise
            print(f"error: {told}", file=sys.stderr)
            return FAILED

    if script["__name__"] == "__main__":
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # of a Latin-1 terminal
        sys.exit(run())
    return run


def _called(text: str, mains: Mapping[str, Main | str], given: list[str]) -> int:
    """Call the function that a command line means. Raises ValueError if the command line is invalid."""
    if asked := bool(HELP & set(given)):
        print(text)
        given = [word for word in given if word not in HELP]
    if asked and "" not in mains:
        return 0
    name = "" if "" in mains else given.pop(0) if given else ""
    if name not in mains:
        raise ValueError(_unknown(name, mains) if name else f"name what to do: {', '.join(mains)}; -h prints the help")
    main: Any = mains[name]
    if isinstance(main, str):
        main = pkgutil.resolve_name(main)
    wants = inspect.signature(main, eval_str=True).parameters
    if asked and "help" not in wants:
        return 0
    names, options = parse(wants, given)
    return main(*names, **options, **{"help": True} if asked else {}) or 0


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


def parse(wants: Mapping[str, inspect.Parameter], arguments: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Parse a command line into its words and its options. Raises ValueError if it is invalid."""
    import argparse  # not needed for help

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> typing.NoReturn:
            raise ValueError(f"{message}; -h prints the help")

    parser, keys, flags = Parser(add_help=False, allow_abbrev=False), set(), []
    needed = [name for name, parameter in wants.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    further = inspect.Parameter.VAR_POSITIONAL in [parameter.kind for parameter in wants.values()]
    free = "overrides" in wants
    for name, parameter in wants.items():
        kind, several = parameter.annotation, typing.get_origin(parameter.annotation) in (list, Sequence)
        if several or types.NoneType in typing.get_args(kind):
            kind = typing.get_args(kind)[0]
        if typing.get_origin(kind) is typing.Literal:
            declared: dict[str, Any] = {"choices": typing.get_args(kind)}
        else:
            declared = {"type": kind}
        if name in needed:
            parser.add_argument(name, metavar=name.upper(), **declared)
        elif name not in ("overrides", "help") and parameter.kind is parameter.KEYWORD_ONLY:
            key = name.strip("_").replace("paths_", "paths.").replace("_", "-")
            flags.append(f"--{key}")
            if kind is bool:
                declared = {"action": "store_true"}
            else:
                keys.add(key)
            if several:  # beside words, an option takes one value
                declared |= {"action": "append"} if further else {"action": "extend", "nargs": "+"}
            declared |= {"dest": name, "required": parameter.default is parameter.empty, "default": argparse.SUPPRESS}
            parser.add_argument(flags[-1], *SHORT.get(name, ()), **declared)
    if further or free:
        parser.add_argument("_words", nargs="*", default=())
    typed = [f"--{word}" if "=" in word and word.partition("=")[0] in keys else word for word in arguments]
    namespace, unasked = parser.parse_known_intermixed_args(typed)
    if unasked:
        raise ValueError(_unasked(unasked[0], flags, typed, free))
    options = vars(namespace)
    names, overrides = [options.pop(name) for name in needed], []
    for name, word in zip(needed, map(str, names)):
        if _SETTING.match(word):
            raise ValueError(f"{word!r} stands where {name.upper()} is expected; -h prints the help")
    for word in options.pop("_words", ()):
        if free and ("=" in word or word[:1] in ("+", "~")):
            overrides.append(word)
        elif "=" in word:
            raise ValueError(_unknown(word.partition("=")[0] + "=", [f"{key}=" for key in keys]))
        elif not further:
            settings = "; write settings as KEY=VALUE, such as task=toy" if free else ""
            raise ValueError(f"unexpected argument {word!r}{settings}; -h prints the help")
        else:
            names.append(word)
    return names, options | ({"overrides": overrides} if free else {})


def _unasked(word: str, flags: Sequence[str], arguments: list[str], free: bool) -> str:
    """What to say of an option or word that a script does not take."""
    from tasks.config.request import settable

    key, equals, value = word.partition("=")
    if free and settable(key.lstrip("-")):
        after = arguments[arguments.index(word) + 1 :][:1]
        value = value if equals else after[0] if after and "=" not in after[0] else "VALUE"
        return f"{key} is unknown here; write {key.lstrip('-')}={value}, without dashes; -h prints the help"
    return _unknown(key, flags)


def _unknown(what: str, known: typing.Iterable[str]) -> str:
    from repro.errors import near

    return f"{what} is unknown here{near(what, known)}; there are: {', '.join(known) or 'none'}; -h prints the help"
