"""The tagger of `tasks.layers.lstm` as an architecture. It has no attention, so `mapping` is ignored."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from repro.options import flag, integer, number
from tasks.config.files import defaults
from tasks.config.models import Place
from tasks.layers.lstm import Tagger

PLACES: dict[str, Place] = {}
EARLIER = {"forward_links": False}  # of cells from before this option


@defaults("model/bilstm_tagger")
class Options:
    """Options of the tagger of Malaviya et al. 2018."""

    embed_dim: int = integer(low=1, help="word vector size")
    hidden_dim: int = integer(low=1, help="units of each direction")
    layers: int = integer(low=1, help="LSTM layers, each in both directions")
    dropout: float = number(low=0, below=1, help="dropout on word vectors and layers")
    forward_links: bool = flag(
        help="as the authors' code: forward links, fertilities from 1, half the loss where it is 1"
    )


class Model(Tagger):
    """A tagger built from `Options` and encoded pairs."""

    def __init__(self, options: Options, encoded: Any, mappings: Mapping[str, nn.Module]) -> None:
        sizes = encoded.sizes[0], options.embed_dim, options.hidden_dim, options.layers
        super().__init__(*sizes, options.dropout, least=int(options.forward_links))
