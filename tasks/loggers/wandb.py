"""Log cells as runs on Weights & Biases.

Environment variables override the configuration: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_DIR, WANDB_NAME,
WANDB_RUN_GROUP, WANDB_JOB_TYPE and wandb's other variables; WANDB_TAGS are added to our tags. Nothing about the
machine, the code or the command line is sent: no host name and no path.
"""

import http.client
import io
import netrc
import os
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from repro.cell import Cell, Results
from repro.files import write_json
from repro.options import choice, number, text
from repro.protocol import metric_of
from tasks.config.files import defaults
from tasks.loggers import about

OWN_SHARE = 0.8  # after this share of the timeout, wandb itself gives up and reports why
SWITCHED_ON = ("silent", "finish_timeout_raises", "disable_git")
SWITCHED_ON += ("x_disable_meta", "x_disable_stats", "x_disable_machine_info")
SENT = "evaluations"  # summary key with the ids of the evaluations that were sent; written last
_SILENT: dict[str, str] = {}  # address -> why it gave no answer
RECEIPT = "cell.json"  # file with the same ids next to an offline run, whose files have no summary


@defaults("logger/wandb", "wandb")
class Options:
    """Options for one wandb run per cell."""

    project: str = text(help="project of the account")
    entity: str | None = text(optional=True, help="team or user; null: the account's own")
    mode: str = choice("auto", "online", "offline", help="auto: online with a key, offline without")
    timeout: float = number(above=0, high=86_400, help="time limit in seconds at the start, per epoch and at the end")


class Logger:
    """One wandb run per cell. The run has the id of the cell, so that a resumed or uploaded cell continues its run."""

    name = "wandb"

    def __init__(self, cell: Cell, options: Mapping[str, Any]) -> None:
        self.cell, self.options, self.timeout = cell, options, options["timeout"]
        self.run: Any = None
        self.said = ""  # what to tell the user
        self._sent = 0

    def start(self) -> None:
        """Open the run, or continue it; with mode=auto, a run whose server does not answer is kept offline.

        Raises ConnectionError if a server that was asked for does not answer; errors from wandb are passed on.
        """
        # otherwise wandb sends errors with tracebacks to its server and, if that is silent, waits 20 seconds at exit
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        cell, environment = self.cell, os.environ
        folder = Path(environment.get("WANDB_DIR") or cell.config["paths"]["outputs"])
        folder.mkdir(parents=True, exist_ok=True)
        of_environment = [t for t in environment.get("WANDB_TAGS", "").split(",") if t]
        ours = {key: self.options[key] for key in ("project", "entity")} | {"mode": mode(self.options["mode"])}
        online = (environment.get("WANDB_MODE") or ours["mode"] or "online") == "online"
        # wandb itself would try for most of the timeout
        if why := unanswered(min(5.0, self.timeout / 2)) if online else "":
            if environment.get("WANDB_MODE") or self.options["mode"] != "auto":
                raise ConnectionError(f"{why}; without mode=online, runs are kept offline")
            ours["mode"] = "offline"
        ours |= {"name": about.name(cell), "run_group": about.group(cell), "job_type": cell.mapping}
        given = {key: None if environment.get(f"WANDB_{key.upper()}") else value for key, value in ours.items()}
        waiting = {f"{when}_timeout": OWN_SHARE * self.timeout for when in ("init", "finish")}
        settings = {k: v for k, v in waiting.items() if not environment.get(f"WANDB_{k.upper()}")}
        given["group"] = given.pop("run_group")
        given["tags"] = list(dict.fromkeys([*about.tags(cell), *of_environment]))
        settings |= dict.fromkeys(SWITCHED_ON, True)
        settings |= {"console": "off", "host": "", "save_code": False, "x_save_requirements": False}
        given["settings"] = wandb.Settings(**settings)
        self.run = wandb.init(id=cell.training_id, resume="allow", dir=str(folder), config=about.config(cell), **given)
        if self.run.offline and self.options["mode"] == "auto" and not environment.get("WANDB_MODE"):
            why = why or f"there is no key for {_server()}"
            self.said = f"{why}; the run is kept offline; send it with: {sync(Path(self.run.dir).parent)}"
        self._sent = self.run.starting_step  # number of rows that a continued run already has
        self.run.define_metric("epoch", hidden=True)

    def curve(self, rows: list[dict[str, float]]) -> None:
        if rows and not self._sent:
            for key in (key for key in rows[0] if key != "epoch"):
                summary = {1: "max", -1: "min", 0: "last"}[metric_of(self.cell.family.METRICS, key).better]
                self.run.define_metric(f"curve/{key}", step_metric="epoch", summary=summary)
        for row in rows[self._sent :]:
            self.run.log({key if key == "epoch" else f"curve/{key}": value for key, value in row.items()})
        self._sent = max(self._sent, len(rows))

    def finish(self, results: Results | None, state: str) -> None:
        """Send the scores, heat maps and samples of a finished cell, and close the run."""
        if results is not None:
            self.run.log(_media(results))
            self.run.summary.update(about.scores(results))
            self.run.summary.update({SENT: evaluations(results)})
        self.run.summary.update({"state": state})
        self.run.finish(exit_code=0 if state == "done" else 1)
        if results is not None:
            write_json(Path(self.run.dir).with_name(RECEIPT), {SENT: evaluations(results)})


def sync(folder: Path) -> str:
    """The command that sends an offline run."""
    return f"python -m wandb sync {shlex.quote(str(folder))}"


def evaluations(results: Results) -> str:
    """The ids of a cell's evaluations, in the form stored in the summary of a complete run."""
    return " ".join(sorted(level.folder.name for level in results.evaluations.values())) or "none"


def _media(results: Results) -> dict[str, Any]:
    import wandb
    from PIL import Image

    media: dict[str, Any] = {}
    for split, level in results.evaluations.items():
        records = level.predictions()
        drawn = about.heat_maps(split, level, records)
        if images := [wandb.Image(Image.open(io.BytesIO(png)), caption=f"{split} {index}") for index, png in drawn]:
            media[f"attention/{split}"] = images
        if records:
            columns, data = about.samples(records)
            media[f"samples/{split}"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    return media


def mode(setting: str) -> str | None:
    """Resolve `logger.wandb.mode`.

    `auto` becomes None (wandb's own choice) if there is a key for its server, and "offline" otherwise.
    """
    if setting != "auto":
        return setting
    keyed = any(os.environ.get(f"WANDB_{k}") for k in ("API_KEY", "IDENTITY_TOKEN_FILE")) or _in_netrc()
    return None if keyed else "offline"


def unanswered(seconds: float) -> str:
    """Why the server gives no answer within some seconds; empty if it gives any, even an error.

    A server that gave none is not asked again in this process, where a sweep may have many cells.
    """
    if (address := _server()) in _SILENT:
        return _SILENT[address]
    try:
        urllib.request.urlopen(address, timeout=seconds).close()
    except (urllib.error.HTTPError, ssl.SSLError):
        return ""
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):
            _SILENT[address] = f"{address} does not answer ({reason})"
    return _SILENT.get(address, "")


def _server() -> str:
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


def _in_netrc() -> bool:
    host = urlparse(_server()).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc").authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
