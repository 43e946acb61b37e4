"""Any mapping as an attention implementation of Hugging Face transformers (5.23 and later).

    sa.integrations.transformers.register("fusedmax", lam=0.1)
    model = AutoModel.from_config(config, attn_implementation="sa_fusedmax")     # or from_pretrained
    model.set_attn_implementation("sa_fusedmax")                                 # or of a model that there is

Attention and mask are registered both: without the second, transformers would hand over no mask at all. The mask is boolean;
one that a model adds itself is split in what it hides and the position biases that it adds (`masks.separate`).

    model.generate(**inputs, past_key_values=sa.integrations.transformers.cache(model))        # steps read an `sa.KeyCache`
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fused import KeyCache, sparse_attention
from ..fused.cache import at_support
from ..fused.reading import read as product
from ..fused.reading import scores, weighed
from ..registry import make, names, spec
from ..rows.shape import asynchronous, foreign, lengths_of
from .masks import HIDDEN, separate

try:
    from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
    from transformers.cache_utils import DynamicLayer
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask, sdpa_mask
    from transformers.utils.output_capturing import _active_collector
except ImportError as error:
    raise ImportError(
        f"sparse_attention.integrations.transformers needs transformers >= 5.23 ({error}); "
        "install it with pip install 'sparse-attention[transformers]'"
    ) from error

_TAKEN = ("eager", "sdpa", "flash", "flex", "paged")  # names that transformers reads a meaning into
_MINE: dict[str, tuple[Any, ...]] = {}
LONG = 1024  # keys; of fewer all values are read


def register(
    mapping: str, name: str | None = None, *, weights: bool = False, below: float = HIDDEN, **params: Any
) -> str:
    """Make a mapping an attention implementation of transformers.

    Args:
        mapping: a name of ``sa.names("simplex")`` that works on rows of scores.
        name: of the implementation; ``sa_<mapping>`` by default. Another name for each choice of parameters.
        weights: return the weights always. Without it they are computed where ``output_attentions=True`` asks for them; a
            forward hook of your own on an attention module needs ``weights=True``.
        below: of a mask that a model adds to the scores, what hides a key; the rest are position biases. Swin's shifted
            windows add -100: ``below=-50``.
        params: of the mapping, numbers.
    Returns:
        The name, for ``attn_implementation=`` and ``set_attn_implementation``.
    Raises:
        UnknownMappingError, ValueError: a mapping or parameter that does not exist or does not fit, a name that is taken.
    """
    known = spec(mapping)
    if known.over != "row" or known.stateful or known.inputs:
        usable = ", ".join(n for n in names("simplex") if spec(n).over == "row" and not spec(n).inputs)
        raise ValueError(
            f"{mapping} needs more than a row of scores, which is all that transformers gives; usable: {usable}"
        )
    if bad := [f"{k}={v!r}" for k, v in params.items() if isinstance(v, (Tensor, str)) and not _word(known, k)]:
        raise ValueError(f"{', '.join(bad)}: an implementation belongs to no model, so it cannot learn; give a number")
    name = f"sa_{mapping}" if name is None else name
    if any(word in name for word in _TAKEN):
        raise ValueError(f"name={name!r} contains a word that transformers gives a meaning to: {', '.join(_TAKEN)}")
    module = make(mapping, **params)
    choice = (mapping, module.params, weights, below)
    if _MINE.setdefault(name, choice) != choice:
        raise ValueError(
            f"{name!r} is registered with {_shown(_MINE[name])}; models may use it. Give {_shown(choice)} a name of its own: "
            f'register("{mapping}", name="{name}_2", ...)'
        )
    AttentionInterface.register(name, functools.partial(attention, module, weights, below))
    AttentionMaskInterface.register(name, mask)
    return name


def use(model: Any, mapping: str, *, partly: bool = False, **given: Any) -> Any:
    """Register a mapping (arguments as `register`), let ``model`` attend with it, and look whether all of it does.

    Args:
        model: a PreTrainedModel, whose attention is changed.
        partly: parts that compute their attention themselves keep it, instead of an error. They add masks to their scores, so all
            parts get masks as eager models do, under a name of its own (``sa_<mapping>_added``).
    Returns:
        The model.
    Raises:
        ValueError: some attention does not go through transformers' interface. `set_attn_implementation` says nothing then.
    """
    own = sorted({type(part).__name__ for part in model.modules() if _by_itself(type(part))})
    if own and not partly:
        raise ValueError(
            f"{', '.join(own)} of {type(model).__name__} attends by code of its own, which transformers' interface does not reach; "
            f"partly=True gives {mapping} to the other parts"
        )
    if own:
        given["name"] = (given.get("name") or f"sa_{mapping}") + "_added"
    name = register(mapping, **given)
    if own:
        AttentionMaskInterface.register(name, eager_mask)
    model.set_attn_implementation(name)
    return model


def _by_itself(kind: type[nn.Module]) -> bool:
    """Whether a class is an attention that takes its softmax itself."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    if issubclass(kind, PreTrainedModel) or "Attention" not in kind.__name__:
        return False
    try:
        source = inspect.getsource(kind)  # some take it in another method than forward
    except (OSError, TypeError):
        return False
    return "softmax" in source and "ALL_ATTENTION_FUNCTIONS" not in source


def cache(model: Any) -> DynamicCache:
    """A dynamic cache for ``past_key_values=`` whose steps read `sa.KeyCache`: no key is copied again, and one query of sparsemax
    or entmax 1.5 is screened on 8 bit panels. Layers with sliding windows stay transformers' own. For inference.

    Raises:
        ValueError: a model that does not attend by a mapping of ours, or has an encoder.
    """
    name = model.config._attn_implementation
    if name not in _MINE or model.config.is_encoder_decoder:
        what = "has an encoder" if name in _MINE else f"attends by {name!r}"
        raise ValueError(f"{type(model).__name__} {what}; cache(model) is for decoders after use(model, mapping), leave past_key_values out")  # fmt: skip
    made, (mapping, params, *_) = DynamicCache(config=model.config), _MINE[name]
    layers = [Held(mapping, params) if type(layer) is DynamicLayer else layer for layer in made.layers]
    made.layers = layers or [Held(mapping, params) for _ in range(model.config.num_hidden_layers)]
    return made


class Held(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values in an `sa.KeyCache`, which `attention` finds at the keys it is given."""

    def __init__(self, mapping: str, params: dict[str, Any]):
        super().__init__()
        self.choice = mapping, params

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.held = KeyCache(self.choice[0], **self.choice[1])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise ValueError("cache(model) records nothing for gradients; call the model under torch.no_grad(), or leave past_key_values out")  # fmt: skip
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.held.append(key_states, value_states)
        return self._read()

    def _read(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.held.keys, self.held.values
        self.keys.sa_held = self.held, self.choice  # type: ignore[attr-defined]
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): give how many positions to forget as a negative number")
        if self.is_initialized:
            self.held.crop(len(self.held) + tokens_to_remove)
            self._read()

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.is_initialized:
            there = self.held.keys
            self.held.reorder(torch.arange(there.shape[0], device=there.device)[indices.to(there.device)])
            self._read()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.held.keys.shape[0]).repeat_interleave(repeats))


class Seen(NamedTuple):
    """What a mask of ours is, beside its values: lets the fused kernel run without reading it."""

    causal: bool
    lengths: Tensor | None  # int64 [B], of right-padded keys
    version: int  # of the mask's memory: written to since, it is another mask


def mask(
    *, batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Tensor | None = None, **given: Any,
) -> Tensor | None:  # fmt: skip
    """The mask of transformers: bool ``[B, 1, n, m]``, True = keep; None where every query sees every key.

    A causal mask is always written out: whether a module that gets None means causal or all, only the mask knows.
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
            padding = None  # nothing is padded
        lengths = None if padding is None else lengths_of(padding)
        if padding is None or (lengths is not None and padding.shape[1] == kv_length):
            keep.sa_seen = Seen(causal, lengths, keep._version)  # type: ignore[attr-defined]
    return keep


def attention(
    mapping: nn.Module, weights: bool, below: float, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, scaling: Any = None, dropout: float = 0.0, position_bias: Tensor | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, sinks: Tensor | None = None,
    indices: Tensor | None = None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The attention of transformers, with the mapping in place of softmax.

    Args:
        query: ``[B, H, n, d]``. key: ``[B, G, m, d]``, H a multiple of G. value: ``[B, G, m, e]``.
        attention_mask: bool (True = keep) or added, broadcastable to ``[B, H, n, m]``; a longer one is cut to m keys.
        position_bias: added to the scores, like attention_mask.
        softcap: scores become ``softcap * tanh(scores / softcap)`` before anything is added.
        s_aux, sinks: ``[H]`` or ``[B, H, n, 1]``, scores of one more position after the last key, without a value.
        indices: ``[B, n, k]``, the keys that an indexer chose; others are masked.
    Returns:
        ``[B, n, H, e]``, and the weights ``[B, H, n, m]`` as they read or None.
    Raises:
        ValueError: what no mapping can be given yet: a paged cache, block indices.
    """
    for name in ("cache", "block_indices"):
        if given.get(name) is not None:
            raise ValueError(f"{type(module).__name__} hands over {name}=, which sparse mappings do not read; use attn_implementation='eager' there")  # fmt: skip
    n, m = query.shape[-2], key.shape[-2]
    sinks = s_aux if sinks is None else sinks
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    dropout = dropout if module.training else 0.0
    seen = getattr(attention_mask, "sa_seen", None)
    if attention_mask is None and given.get("is_causal") is True and n > 1:
        attention_mask, seen = torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n), Seen(True, None, 0)
    elif attention_mask is not None:
        if seen is not None and (
            seen.version != attention_mask._version or attention_mask.shape != (query.shape[0], 1, n, m)
        ):
            seen = None
        attention_mask = attention_mask[..., :m]
    plain = all(x is None for x in (position_bias, softcap, sinks, indices))
    plain = plain and not isinstance(scale, Tensor) and query.ndim == 4 and query.shape[0] == key.shape[0]
    if (
        plain
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and not (weights or _asked(module, given))
    ):
        causal, lengths, keep = (seen.causal, seen.lengths, None) if seen else (False, None, attention_mask)
        told = {"mask": keep, "causal": causal, "lengths": lengths, "scale": scale}
        held, choice = getattr(key, "sa_held", (None, None))
        sparsely = n == 1 and not dropout and _reads_the_support(mapping, query)
        if sparsely and held is not None and keep is None and choice == _choice(mapping):
            factor = scale * query.shape[-1] ** 0.5  # that of the cache is d ** -0.5
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
    keep = None
    for added in (position_bias, attention_mask):
        if added is None:
            continue
        visible = added[..., :m]
        if added.dtype != torch.bool:
            visible, bias = separate(visible, below)
            logits = logits + bias
        keep = visible if keep is None else keep & visible
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


def _choice(mapping: Any) -> tuple[str, dict[str, Any]] | None:
    return (mapping.spec.name, mapping.params) if hasattr(mapping, "spec") else None


def _reads_the_support(mapping: nn.Module, query: Tensor) -> bool:
    """Whether a step of decoding may look for the zeros of its weights before it reads the values, as `sa.KeyCache` does."""
    readable = query.dtype == torch.float32 and not (asynchronous(query) or foreign(query) or torch.is_grad_enabled())
    return readable and getattr(mapping, "spec", None) is not spec("softmax")


def _asked(module: nn.Module, given: dict[str, Any]) -> bool:
    """Whether somebody waits for the weights: the call says so, transformers collects them, or a model of the older kind,
    which hands them upwards whether it was asked or not."""
    if given.get("output_attentions") or _hands_upwards(type(module).__module__):
        return True
    return any("attentions" in key for key in _active_collector.get() or ())


@functools.cache
@torch.compiler.assume_constant_result
def _hands_upwards(module: str) -> bool:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # a model typed into a notebook
        return True
    return "if output_attentions" in source or "capture_outputs" not in source


def _word(known: Any, name: str) -> bool:
    return any(p.name == name and p.choices for p in known.params)


def _shown(choice: tuple[Any, ...]) -> str:
    mapping, params, *_ = choice
    return f"{mapping}({', '.join(f'{k}={v!r}' for k, v in params.items())})"


__all__ = ["attention", "cache", "mask", "register", "use"]
