"""Register any mapping as an attention implementation of Hugging Face transformers (5.23 and later).

    sa.integrations.transformers.register("entmax", alpha=1.5)
    model = AutoModel.from_config(config, attn_implementation="sa_entmax")     # or from_pretrained
    model.set_attn_implementation("sa_entmax")                                 # or on an existing model

Both the attention and a mask function are registered: without a mask function, transformers would pass no mask. The
mask is boolean; a mask that a model adds to its scores is split into a boolean mask and position biases
(`masks.separate`).

    model.generate(**inputs, cache=sa.integrations.transformers.cache(model))    # decodes with `sa.KeyCache`

The argument ``cache=`` is called ``past_key_values=`` in transformers 5.23.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import KeyCache, sparse_attention
from ..attention.cache import at_support
from ..attention.reading import read as product
from ..attention.reading import scores, weighed
from ..masks import HIDDEN, separate
from ..nn import MultiheadAttention, usable
from ..registry import spec
from ..rows.shape import asynchronous, foreign, lengths_of
from .sdpa import _ATTENDS

try:
    from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
    from transformers.cache_utils import Cache, DynamicLayer
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
    from transformers.utils.output_capturing import _active_collector
except ImportError as error:
    raise ImportError(
        f"sparse_attention.integrations.transformers needs transformers >= 5.23 ({error}); "
        "install it with pip install 'transformers>=5.23'"
    ) from error

_TAKEN = ("eager", "sdpa", "flash", "flex", "paged")  # words in a name that have a meaning for transformers
_MINE: dict[str, tuple[Any, ...]] = {}
_OWN = re.compile(
    r"softmax\(|scaled_dot_product_attention\(", re.IGNORECASE
)  # in the source of one without the interface
LONG = 1024  # with fewer keys, all values are read


def register(
    mapping: str, name: str | None = None, *, weights: bool = False, below: float = HIDDEN, **params: Any
) -> str:
    """Register a mapping as an attention implementation of transformers.

    Args:
        mapping: a name from ``sa.names("simplex")`` or ``sa.names("unnormalised")`` that maps score vectors.
        name: the name of the implementation; ``sa_<mapping>`` by default. Each choice of parameters needs its own name.
        weights: always return the weights. By default, they are computed only for ``output_attentions=True``. If you
            put your own forward hook on an attention module, use ``weights=True``.
        below: in a mask that a model adds to the scores, numbers at or below this limit hide a key; other numbers are
            position biases. For Swin, whose shifted windows add -100, use ``below=-50``.
        params: the parameters of the mapping, as numbers.
    Returns:
        The name, for ``attn_implementation=`` and ``set_attn_implementation``.
    Raises:
        UnknownMappingError, ValueError: the mapping or a parameter is unknown or unsuitable, or the name is taken.
    """
    words = {p.name for p in spec(mapping).params if p.choices}
    if bad := [f"{k}={v!r}" for k, v in params.items() if isinstance(v, (Tensor, str)) and k not in words]:
        raise ValueError(
            f"{', '.join(bad)}: a registered implementation is not part of a model and cannot learn; give a number"
        )
    name = f"sa_{mapping}" if name is None else name
    if any(word in name for word in _TAKEN):
        raise ValueError(f"name={name!r} contains a word reserved by transformers: {', '.join(_TAKEN)}; choose another")
    module = usable(mapping, params)
    choice = (mapping, module.params, weights, below)
    if _MINE.setdefault(name, choice) != choice:
        raise ValueError(
            f"{name!r} is already registered with {_shown(_MINE[name])}, and models may use it. Give {_shown(choice)} another name: "
            f'register("{mapping}", name="{name}_2", ...)'
        )
    AttentionInterface.register(name, functools.partial(attention, module, weights, below))
    AttentionMaskInterface.register(name, mask)
    return name


def use(model: Any, mapping: str, **given: Any) -> Any:
    """Register a mapping (arguments as for `register`) and switch ``model`` to it.

    `set_attn_implementation` alone does not report modules that attend by code of their own, in which softmax would stay.

    Args:
        model: a PreTrainedModel; it is modified in place.
    Returns:
        The model.
    Raises:
        ValueError: the model contains ``torch.nn.MultiheadAttention`` or an attention module whose source calls softmax or
            torch's attention, or transformers cannot switch its attention.
    """
    kind = type(model).__name__
    if any(isinstance(x, nn.MultiheadAttention) and not isinstance(x, MultiheadAttention) for x in model.modules()):
        raise ValueError(f"{kind} contains torch.nn.MultiheadAttention; call sa.nn.replace(model, {mapping!r}) first")
    parts = {type(x) for x in model.modules() if _ATTENDS.search(type(x).__name__)}
    sources = {part.__name__: _source(part) for part in parts}
    if own := sorted(name for name, text in sources.items() if _OWN.search(text) and "ALL_ATTENTION_FUNC" not in text):
        raise ValueError(
            f"{', '.join(own)} of {kind} attends by its own code, which {mapping} cannot replace; use another model, or call "
            "use on a part that has a configuration of its own, such as model.language_model"
        )
    name = register(mapping, **given)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(f"{kind} attends by its own code, which {mapping} cannot replace; use another model")
    return model


def _source(part: type) -> str:
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):  # typed at a prompt
        return ""


def cache(model: Any) -> DynamicCache:
    """A dynamic cache for ``cache=`` (``past_key_values=`` in transformers 5.23) that stores keys and values in `sa.KeyCache`. For inference only.

    Keys are not copied again at every step. With sparsemax or entmax 1.5, a single query first selects candidate keys
    with the 8-bit panels. Layers with sliding windows keep transformers' own cache.

    Raises:
        ValueError: the model does not use a registered mapping for its attention, or it has an encoder.
    """
    name = model.config._attn_implementation
    if name not in _MINE or model.config.is_encoder_decoder:
        what = "has an encoder" if name in _MINE else f"attends by {name!r}"
        raise ValueError(f"{type(model).__name__} {what}; cache(model) needs a decoder without encoder, after use(model, mapping). For other models leave the cache out")  # fmt: skip
    made, (mapping, params, *_) = DynamicCache(config=model.config), _MINE[name]
    made.layers = [Held(mapping, params) if type(layer) is DynamicLayer else layer for layer in made.layers]
    return made


class Held(DynamicLayer):  # type: ignore[misc]
    """Stores a layer's keys and values in an `sa.KeyCache`, which `attention` finds as an attribute of the keys."""

    def __init__(self, mapping: str, params: dict[str, Any]):
        super().__init__()
        self.choice = mapping, params

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the cache for states shaped like these ``[B, H, n, d]``; they are not stored yet."""
        super().lazy_initialization(key_states, value_states)
        self.held = KeyCache(self.choice[0], **self.choice[1])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new positions, ``[B, H, n, d]``.

        Returns:
            keys and values of all positions so far, ``[B, H, N, d]``.

        Raises:
            ValueError: one of the tensors requires a gradient, and gradients are recorded.
        """
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise ValueError("cache(model) does not support gradients; call the model under torch.no_grad(), or leave the cache out")  # fmt: skip
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.held.append(key_states, value_states)
        return self._read()

    def _read(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.held.keys, self.held.values
        self.keys.sa_held = self.held, self.choice  # type: ignore[attr-defined]
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last positions; their number is given as a negative one, as transformers does."""
        super().crop(tokens_to_remove)  # refuses a positive one
        if self.is_initialized:
            self.held.crop(len(self.held) + tokens_to_remove)
            self._read()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences of these indices, int64 ``[B']`` or bool ``[B]``, in this order."""
        if self.is_initialized:
            there = self.held.keys
            self.held.reorder(torch.arange(there.shape[0], device=there.device)[indices.to(there.device)])
            self._read()

    reorder_cache = batch_select_indices  # type: ignore[assignment]  # in the order that beam search chose

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch: ``B`` sequences become ``B * repeats``, copies side by side."""
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.held.keys.shape[0]).repeat_interleave(repeats))


class Seen(NamedTuple):
    """Properties of a mask made by `mask`, which save the fused kernel from reading the mask."""

    causal: bool
    lengths: Tensor | None  # int64 [B], of right-padded keys
    version: int  # version of the mask's memory: if the mask was changed since, these properties no longer hold


def mask(
    *, batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Tensor | None = None, **given: Any,
) -> Tensor | None:  # fmt: skip
    """The mask function for transformers: bool ``[B, 1, n, m]``, True = keep; None if every query sees every key.

    A causal mask is always returned as a tensor, since None could mean either a causal mask or no mask.
    """
    given["allow_is_causal_skip"] = False
    keep = sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, **given,
    )  # fmt: skip
    if keep is None or foreign(keep) or asynchronous(keep) or keep.is_inference():
        return keep
    causal = mask_function is causal_mask_function and kv_offset == 0 and bool(q_offset + q_length == kv_length)
    if causal or mask_function is bidirectional_mask_function:
        padding = None if attention_mask is None else attention_mask[:, :kv_length].bool()
        if padding is not None and padding.shape[1] == kv_length and bool(padding.all()):
            padding = None  # there is no padding
        lengths = None if padding is None else lengths_of(padding)
        if padding is None or (lengths is not None and padding.shape[1] == kv_length):
            keep.sa_seen = Seen(causal, lengths, keep._version)  # type: ignore[attr-defined]
    return keep


def attention(
    mapping: Any, weights: bool, below: float, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, scaling: Any = None, dropout: float = 0.0, position_bias: Tensor | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, sinks: Tensor | None = None,
    indices: Tensor | None = None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The attention function for transformers, with the mapping instead of softmax.

    Args:
        query: ``[B, H, n, d]``. key: ``[B, G, m, d]`` with H a multiple of G. value: ``[B, G, m, e]``.
        attention_mask: bool (True = keep) or additive, broadcastable to ``[B, H, n, m]``; a longer mask is cut to m
            keys.
        position_bias: added to the scores, like attention_mask.
        softcap: scores become ``softcap * tanh(scores / softcap)`` before anything is added.
        s_aux, sinks: ``[H]`` or ``[B, H, n, 1]``; scores for one extra position after the last key, which has no value.
        indices: ``[B, n, k]``; the keys selected by an indexer. All other keys are masked.
    Returns:
        ``[B, n, H, e]``, and the weights ``[B, H, n, m]`` that were applied to the values, or None.
    Raises:
        ValueError: unsupported arguments, such as a paged cache or block indices.
    """
    for name in ("cache", "block_indices"):
        if given.get(name) is not None and not isinstance(given[name], Cache):  # a module has read these already
            raise ValueError(f"{type(module).__name__} passes {name}=, which sparse mappings do not support; use attn_implementation='eager' for this model")  # fmt: skip
    n, m = query.shape[-2], key.shape[-2]
    sinks = s_aux if sinks is None else sinks
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    dropout = dropout if module.training else 0.0
    seen = getattr(attention_mask, "sa_seen", None)
    if attention_mask is not None:
        whole = attention_mask.shape == (query.shape[0], 1, n, m)
        seen = seen if seen and whole and seen.version == attention_mask._version else None
    elif given.get("is_causal") is True and n > 1:
        attention_mask, seen = torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n), Seen(True, None, 0)
    keep = bias = None
    for added in (position_bias, attention_mask):
        if added is None:
            continue
        visible = added[..., :m]
        if added.dtype != torch.bool:
            visible, numbers = separate(visible, below)
            bias = numbers if bias is None else bias + numbers
        keep = visible if keep is None else keep & visible
    composed = weights or isinstance(scale, Tensor) or any(x is not None for x in (softcap, sinks, indices))
    if not composed and query.ndim == 4 and query.shape[0] == key.shape[0] and not _asked(module, given):
        if bias is not None and not (bias.requires_grad or foreign(bias) or asynchronous(bias) or bool(bias.any())):
            bias = None
        causal, lengths = False, None
        if seen and position_bias is None:
            causal, lengths, keep = seen.causal, seen.lengths, None
        told = {"mask": keep, "causal": causal, "lengths": lengths, "bias": bias, "scale": scale}
        held, choice = getattr(key, "sa_held", (None, None))
        sparsely = (  # a decoding step that may skip the values of zero weights
            n == 1 and bias is None and not dropout and query.dtype == torch.float32 and mapping.spec.name != "softmax"
        ) and not (asynchronous(query) or foreign(query) or torch.is_grad_enabled())
        if sparsely and held is not None and keep is None and choice == (mapping.spec.name, mapping.params):
            factor = scale * query.shape[-1] ** 0.5  # the cache itself scales by d ** -0.5
            read = held.attend(query if abs(factor - 1) < 1e-6 else query * factor, lengths=lengths)
        elif sparsely and m >= LONG:
            _, p = sparse_attention(query, key, key[..., :0], mapping, need_weights=True, **told)
            read = at_support(p, value)
        else:
            read = sparse_attention(query, key, value, mapping, dropout=dropout, **told)
        return read.transpose(1, 2).contiguous(), None

    logits = scores(query, key) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    logits = logits if bias is None else logits + bias
    if indices is not None:
        chosen = torch.zeros(query.shape[0], 1, n, m, dtype=torch.bool, device=query.device)
        chosen = chosen.scatter(-1, indices.long().unsqueeze(1), True)
        keep = chosen if keep is None else keep & chosen
    if sinks is not None:
        last = (sinks.reshape(1, -1, 1, 1) if sinks.ndim == 1 else sinks).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, last.to(logits.dtype)], -1)
        keep = None if keep is None else F.pad(keep.expand(*keep.shape[:-1], m), (0, 1), value=True)
    found = weighed(logits, mapping(logits, mask=keep))[..., :m]
    found = F.dropout(found, dropout, module.training).to(value.dtype)
    return product(found, value).transpose(1, 2).contiguous(), found


def _asked(module: nn.Module, given: dict[str, Any]) -> bool:
    """True if the weights are needed: the call asks for them, transformers collects them, or the model is of the older
    kind that always returns them."""
    if given.get("output_attentions") or not _collects(type(module).__module__):
        return True
    return any("attentions" in key for key in _active_collector.get() or ())


@functools.cache
@torch.compiler.assume_constant_result
def _collects(file: str) -> bool:
    """True if transformers collects the weights of the models of a Python module; others return them themselves."""
    kinds = (x for x in vars(sys.modules[file]).values() if isinstance(x, type) and issubclass(x, PreTrainedModel))
    return any("attentions" in key for kind in kinds for key in kind._can_record_outputs or ())


def _shown(choice: tuple[Any, ...]) -> str:
    mapping, params, *_ = choice
    return f"{mapping}({', '.join(f'{k}={v!r}' for k, v in params.items())})"


__all__ = ["attention", "cache", "mask", "register", "use"]
