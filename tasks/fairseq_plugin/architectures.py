"""Makes a fairseq model for every architecture of a family, configured by the architecture's options."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Optional, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import nn

from repro.options import default_of
from tasks.config import models

PLAIN = (bool, int, float, str)  # everything else travels as JSON
Entry = tuple[str, Any, Any]


def entry(name: str, kind: Any, default: Any, help: str = "") -> Entry:
    """A field of a fairseq dataclass, for `config_class`."""
    return name, kind, dataclasses.field(default=default, metadata={"help": help} if help else {})


def config_class(name: str, *entries: Entry) -> type:
    """Make a fairseq dataclass with these fields."""
    return dataclasses.make_dataclass(f"{name}_config", entries, bases=(FairseqDataclass,))


MAPPING = (
    entry("mapping", str, "softmax", "registered attention mapping"),
    entry("mapping_params", str, "{}", "its parameters as JSON"),
)


def registered_name(architecture: str) -> str:
    """The name (`--arch`) under which an architecture is registered with fairseq."""
    return "sa_seq2seq" if architecture == "lstm" else f"sa_{architecture}"


def entries(options: type) -> list[Entry]:
    """Convert the fields of an options class (see `repro.options`) into fields of a fairseq dataclass.

    Their types are limited to those that fairseq's parser can read.
    """
    found = []
    for one in dataclasses.fields(options):
        kind = one.metadata["kind"]
        default = default_of(one)
        if kind.type not in PLAIN:
            default = json.dumps(default)
        help = (kind.help or one.name) + (" (the flag switches it off)" if default is True else "")
        of = kind.type if kind.type in PLAIN else str
        if of is not bool:
            of = Optional[of]  # noqa: UP045  fairseq's parser does not know `of | None`
        found.append(entry(one.name, of, default, help))
    return found


def values_of(cfg: Any, options: type) -> dict[str, Any]:
    """Read the values of `options` from fairseq's configuration `cfg`, whose fields were made by `entries`."""
    kinds = {one.name: one.metadata["kind"].type for one in dataclasses.fields(options)}
    return {k: getattr(cfg, k) if kind in PLAIN else json.loads(getattr(cfg, k)) for k, kind in kinds.items()}


def model_group(config: Mapping[str, Any], options: type) -> dict[str, Any]:
    """fairseq's configuration group `model`, made from the nodes `model` and `mapping` of our configuration."""
    mapping = {k: v for k, v in config["mapping"].items() if k not in ("name", "grid")}
    kinds, model = {one.name: one.metadata["kind"].type for one in dataclasses.fields(options)}, dict(config["model"])
    found = {"_name": registered_name(model.pop("name"))}
    found |= {k: v if kinds[k] in PLAIN else json.dumps(v) for k, v in model.items()}
    return found | {"mapping": config["mapping"]["name"], "mapping_params": json.dumps(mapping)}


def build_net(family: str, architecture: str, cfg: Any, *sizes: Any) -> Any:
    """The plain torch model that `cfg` describes; `sizes` are the constructor's arguments before the mappings."""
    node = {"name": architecture} | values_of(cfg, models.architecture(family, architecture).Options)
    return models.build(family, node, {"name": cfg.mapping} | json.loads(cfg.mapping_params), *sizes)


class DataModel(BaseFairseqModel):
    """A fairseq model that is built from the encoded data of its task."""

    net_of: Callable[..., Any]  # `build_net` of the architecture

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        return cls(cls.net_of(cfg, task.encoded))

    def forward(self, **inputs: Any) -> Any:
        return self.net(**inputs)


def register(family: str, base: type) -> None:
    """Register every architecture of a family as a subclass of the fairseq model `base`."""
    for name in models.names(family):
        registered = registered_name(name)
        config = config_class(registered, *MAPPING, *entries(models.architecture(family, name).Options))
        own = {
            "net_of": staticmethod(partial(build_net, family, name)),
            "__doc__": f"{models.FAMILIES[family]}.models.{name}",
        }
        register_model(registered, dataclass=config)(type(registered, (base,), own))
