"""From Hydra overrides to a checked, plain configuration; from an experiment's name to its plan.

Hydra lives here and in `scripts/`, so that the library needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import sparse_attention as sa
from sparse_attention.repro.cell import Cell, load_plugins
from sparse_attention.repro.protocol import task_of
from tasks.fairseq_run import OPTIMIZERS, SCHEDULE_KEYS
from tasks.loggers import NAMES as LOGGERS

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, collected before any data is read."""


@contextmanager
def composer():
    """Context of a function `compose(overrides) -> plain configuration`."""
    from hydra import compose, initialize_config_dir

    composed: dict[tuple[str, ...], dict[str, Any]] = {}

    def resolve(overrides: Sequence[str] = ()) -> dict[str, Any]:
        key = tuple(overrides)
        if key not in composed:
            composed[key] = plain(compose("main", overrides=list(key)))
        return composed[key]

    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield resolve


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolve a composed configuration to plain containers and check it. Raises `ConfigError` with all problems."""
    try:
        values: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{error.full_key or 'configuration'}: {str(error).splitlines()[0]}; set it on the command line"
        ) from error
    values.pop("hydra", None)
    for key, value in values["mapping"].items():
        if isinstance(value, int) and not isinstance(value, bool):
            values["mapping"][key] = float(value)  # lam=1 and lam=1.0 are one cell
    if values["runtime"]["device"] == "auto":
        import torch

        values["runtime"]["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    check(values)
    return values


def check(config: Mapping[str, Any]) -> None:
    """Look at everything that can be judged without data; raise `ConfigError` listing what is wrong."""
    problems: list[str] = []
    load_plugins(config.get("plugins") or [])
    mapping = {k: v for k, v in config["mapping"].items() if k != "name"}
    try:
        sa.make(config["mapping"]["name"], **mapping)
    except (ValueError, KeyError, TypeError) as error:
        problems.append(str(error).strip('"'))
    allowed: dict[str, tuple[str, Sequence[Any]]] = {
        "runtime.device": (config["runtime"]["device"], ("cpu", "cuda")),
        "train.precision": (config["train"]["precision"], ("fp32", "fp16", "bf16")),
        "logger": (config["logger"]["name"], LOGGERS),
        "optim.name": (config["optim"]["name"], OPTIMIZERS),
        "optim.schedule": (config["optim"]["schedule"], tuple(SCHEDULE_KEYS)),
        "optim.normalize": (config["optim"]["normalize"], ("tokens", "sentences")),
        "model.attention": (config["model"].get("attention", "general"), ("general", "dot", "additive")),
    }
    for key, (value, choices) in allowed.items():
        if value not in choices:
            problems.append(f"{key}={value!r} is not possible; allowed: {', '.join(choices)}")
    for group, key in (
        ("train", "max_epochs"),
        ("train", "batch_size"),
        ("train", "processes"),
        ("runtime", "threads"),
        ("runtime", "workers"),
    ):
        value = config[group][key]
        if value is not None and (not isinstance(value, int) or value < 1):
            problems.append(f"{group}.{key}={value!r} must be a whole number of at least 1")
    if not isinstance(config["seed"], int) or config["seed"] < 0:
        problems.append(f"seed={config['seed']!r} must be a whole number of at least 0")
    rate = config["optim"]["lr"]
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
        problems.append(f"optim.lr={rate!r} must be a positive number")
    known = getattr(task_of(config), "SCORES", None)
    for name in config["task"].get("scores") or ():
        if known is not None and name not in known:
            problems.append(f"task.scores names {name!r}; allowed: {', '.join(known)}")
    metrics = getattr(task_of(config), "DEV_METRICS", None)
    if metrics is not None and config["train"]["best_metric"] not in metrics:
        problems.append(
            f"train.best_metric={config['train']['best_metric']!r} is not possible; allowed: {', '.join(metrics)}"
        )
    if not problems and (more := getattr(task_of(config), "problems", None)) is not None:
        problems += more(config)
    if problems:
        raise ConfigError("; ".join(problems))


def yaml_of(cell: Cell) -> str:
    """A cell's configuration as YAML, with its identity on top."""
    return f"# cell {cell.cell_id}\n" + OmegaConf.to_yaml(OmegaConf.create(dict(cell.config)))


def experiment(name: str, profile: str) -> dict[str, Any]:
    """`configs/experiment/<name>.yaml` with the parts of `profiles.<profile>` in place.

    Raises ConfigError for an unknown experiment or a profile it does not define.
    """
    folder = CONFIGS / "experiment"
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(
            f"experiment {name!r} is unknown; there are: {', '.join(sorted(p.stem for p in folder.glob('*.yaml')))}"
        )
    loaded: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path), resolve=True)  # type: ignore[assignment]
    profiles = loaded.pop("profiles")
    if profile not in profiles:
        raise ConfigError(f"{name} has no profile {profile!r}; it has: {', '.join(profiles)}")
    columns, rows = loaded["columns"], loaded["rows"]
    chosen = profiles[profile]
    wanted = {key: columns[key] | {"key": key} for key in chosen.pop("columns")}
    only = chosen.pop("rows", None)
    merged = loaded | chosen
    merged["columns"] = list(wanted.values())
    merged["rows"] = [r for r in rows if only is None or r["label"] in only]
    for column in merged["columns"]:
        column["overrides"] = [*column.get("overrides", []), f"profile={profile}"]
    for row in merged["rows"]:
        row["overrides"] = [f"mapping={row['mapping']}", *row.get("overrides", [])]
    merged["name"], merged["profile"] = name, profile
    return merged


def own_row(name: str, parameters: Sequence[str]) -> dict[str, Any]:
    """A row for a mapping that the paper does not have: by its file in `configs/mapping`, or registered by a plugin."""
    label = f"{name}({', '.join(parameters)})" if parameters else name
    if (CONFIGS / "mapping" / f"{name}.yaml").exists():
        overrides = [f"mapping={name}", *(f"mapping.{p}" for p in parameters)]
    else:
        overrides = ["mapping=custom", f"mapping.name={name}", *(f"+mapping.{p}" for p in parameters)]
    return {"label": label, "published": "", "mapping": name, "overrides": overrides}


def published(name: str) -> list[dict[str, Any]]:
    """The records of `configs/published/<name>.yaml`."""
    loaded: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "published" / f"{name}.yaml"))
    return loaded["results"]


Compose = Callable[[Sequence[str]], dict[str, Any]]
