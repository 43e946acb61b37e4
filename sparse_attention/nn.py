"""``sa.nn.MultiheadAttention`` replaces ``torch.nn.MultiheadAttention`` and uses a mapping instead of softmax.

attend = sa.nn.MultiheadAttention(256, 8, batch_first=True, mapping="entmax", alpha=1.5)
sa.nn.replace(model, "sparsemax")      # gives every torch.nn.MultiheadAttention in a model the mapping, in place
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm

from .attention import sparse_attention
from .attention.call import over_rows
from .attention.reading import read as product
from .attention.reading import scores, weighed
from .masks import separate
from .registry import Mapping, built, shown, spec
from .rows.shape import PLAIN, as_node, asynchronous, foreign, lengths_of


def over_keys(mapping: str | nn.Module, **params: Any) -> nn.Module:
    """The mapping for attention over keys: built from a name with `params`; a module is returned unchanged.

    Raises:
        TypeError: the mapping is neither a name nor a module that takes a mask.
        ValueError: parameters were given together with a module; the module does not work along the last dimension,
            which is the dimension of the keys.
    """
    if not isinstance(mapping, (str, nn.Module)):
        raise TypeError(
            f"{shown(mapping)} is not a module; pass a mapping's name, or a module such as sa.make('entmax')"
        )
    made: nn.Module = built(mapping, params)
    if getattr(made, "dim", -1) != -1:
        raise ValueError(
            f"{made!r} works along dim={made.dim}, but attention needs the last dimension; make the mapping without dim"
        )
    return made


def usable(mapping: str | nn.Module, params: dict[str, Any]) -> Any:
    """`over_keys`, which also checks that scores and a mask are all that the mapping needs."""
    if isinstance(mapping, str):
        over_rows(spec(mapping))
        if missing := [name for name in spec(mapping).inputs if name not in params]:
            raise ValueError(f"{mapping} needs {', '.join(missing)} at each call; pass {missing[0]}=... here")
    return over_keys(mapping, **params)


def _per_head(made: nn.Module, attend: nn.MultiheadAttention) -> nn.Module:
    """The mapping with one learned value for each head, on the device of ``attend``."""
    made = made.spread(attend.num_heads, 1) if isinstance(made, Mapping) else made
    at = next(attend.parameters(), None)  # FSDP moves a module's parameters elsewhere and leaves tensors in their place
    return made.to(attend.out_proj.weight.device if at is None else at.device)


def _unfused(attend: nn.Module, args: Any) -> None:
    """A forward pre-hook that does nothing. torch's layers use their fused softmax only for modules without hooks."""


class MultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with a mapping instead of softmax.

    The constructor arguments, parameter names, initial values and call signature are the same as torch's. The module
    works inside ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``; it disables the layer's fused path in
    eval mode. If the mapping learns a hyperparameter (``alpha="learned"``), each head has its own value.

    State dicts can be loaded in both directions. A mapping with tensors adds its entries (``mapping.alpha_logit``),
    which torch's module does not have: then load with ``strict=False``, in both directions.

    Masks follow torch, which is the opposite of the rest of this library: in a boolean mask, **True hides a key**. A
    floating-point mask is added to the scores; -inf and numbers at or below -5000 (`masks.HIDDEN`) hide a
    key.

    Three cases differ from torch: a query with no visible key returns zeros before the output projection (torch: NaN); nested
    tensors work in training, too (torch: an error); hooks of ``out_proj`` run (torch ignores them).

    Args:
        bias: torch's flag.
        mapping: a name from ``sa.names("simplex")`` or ``sa.names("unnormalised")``, or a module made by `sa.make`.
        params: parameters of a mapping given by name.
    Raises:
        ValueError: as in torch's module; also if parameters are given together with a module, or the mapping does not
            know them, does not work on rows of scores or needs further inputs.
    """

    mapping: Any
    _reads_out_proj = False  # whether to read the weight of out_proj, as torch does, rather than to call it

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool | float | Tensor | None = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None,
        batch_first: bool = False, device: Any = None, dtype: Any = None, *,
        mapping: str | nn.Module = "sparsemax", **params: Any,
    ) -> None:  # fmt: skip
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}")
        if isinstance(bias, (float, Tensor)):
            instead = f"pass mapping=sa.make({mapping!r}, bias={bias!r})"
            warnings.warn(f"bias= as a parameter of a mapping ends with 0.4; {instead}", DeprecationWarning, 2)
            params, bias = {**params, "bias": bias}, True
        made = usable(mapping, params)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )  # fmt: skip
        self.mapping = _per_head(made, self)
        self.register_forward_pre_hook(_unfused)

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attend, as torch's module does.

        Args:
            query: ``[T, B, E]``, ``[B, T, E]`` with batch_first, or ``[T, E]``. key, value: the same, with S positions.
                With batch_first and without masks and weights, all three may be nested, ``[B, *, E]``.
            key_padding_mask: ``[B, S]`` or ``[S]``; either bool (True = hidden) or floating point (added to the
                scores).
            need_weights: also return the weights. Without them, the fastest path is used (`sa.sparse_attention`).
            attn_mask: ``[T, S]`` or ``[B * heads, T, S]``; either bool (True = hidden) or floating point (added to the
                scores).
            average_attn_weights: return the mean of the weights over the heads.
            is_causal: states that attn_mask is the causal mask; attn_mask must be passed too, except with nested tensors.
        Returns:
            The output in the shape of query, and the weights: ``[B, T, S]`` or ``[B, heads, T, S]`` (without B for
            unbatched input), or None if need_weights is False.
        Raises:
            ValueError: a mask has the wrong shape, or a nested tensor comes with a mask or need_weights. RuntimeError:
            is_causal without attn_mask.
        """
        if query.__class__ not in PLAIN:
            masks = {"attn_mask": attn_mask, "average_attn_weights": average_attn_weights, "is_causal": is_causal}
            if (node := as_node(self, query, key, value, key_padding_mask, need_weights, **masks)) is not None:
                return node  # type: ignore[no-any-return]
        if query.is_nested or key.is_nested or value.is_nested:
            plain = key_padding_mask is attn_mask is self.bias_k is None and not (need_weights or self.add_zero_attn)
            if not (plain and self.batch_first and query.is_nested and key.is_nested and value.is_nested):
                raise ValueError(
                    "nested query, key and value need batch_first=True, all three nested, need_weights=False, no masks and no "
                    "add_bias_kv or add_zero_attn; or pad them with torch.nested.to_padded_tensor and pass key_padding_mask"
                )
            return self._nested(query, key, value, is_causal), None
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "is_causal=True means that attn_mask is the causal mask; pass that mask as attn_mask, as for torch's module"
            )
        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._heads(query, key, value)  # [B, H, T, d], [B, H, S + extra, d]
        padded, seen, bias = self._masks(q, key.shape[1], key_padding_mask, attn_mask)
        if extra := k.shape[2] - key.shape[1]:
            padded, seen = (None if x is None else F.pad(x, (0, extra), value=True) for x in (padded, seen))
            bias = None if bias is None else F.pad(bias, (0, extra))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if not need_weights:
            causal = is_causal and not extra and q.shape[2] == k.shape[2]
            seen = None if causal else seen
            lengths = lengths_of(padded[:, 0, 0]) if padded is not None and seen is None and not extra else None
            padded = padded if lengths is None else None
            kept = _both(padded, seen)
            read = sparse_attention(q, k, v, self.mapping, kept, causal, lengths, dropout=dropout, bias=bias)
        else:
            x = scores(q * q.shape[-1] ** -0.5, k)
            x = x if bias is None else x + bias
            weights = F.dropout(weighed(x, self.mapping(x, mask=_both(padded, seen))), dropout)
            read = product(weights, v)  # [B, H, T, d]
        read = read.transpose(1, 2).flatten(2)
        out = self._out(read)
        out = out.squeeze(0) if single else out if self.batch_first else out.transpose(0, 1)
        if not need_weights or weights is None:
            return out, None
        weights = weights.mean(1) if average_attn_weights else weights
        return out, weights.squeeze(0) if single else weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projected q, k and v, each ``[B, H, positions, d]``, with the constructor's extra keys and values."""
        packed = self.in_proj_weight  # read once, since a parametrization computes it
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if packed is None else packed.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, b.expand(x.shape[0], -1, -1)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return tuple(x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # type: ignore[return-value]

    def _nested(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Attention within each sequence of nested tensors ``[B, *, E]``, in query's layout."""
        if query.layout is torch.strided:  # as nn.TransformerEncoder makes them in eval mode
            jagged = functools.partial(torch.nested.as_nested_tensor, layout=torch.jagged)
            q, k, v = (jagged(list(x.unbind())) for x in (query, key, value))
            return torch.nested.as_nested_tensor(list(self._nested(q, k, v, causal).unbind()))
        q, k, v = self._heads(query, key, value)
        read = sparse_attention(q, k, v, self.mapping, causal=causal, dropout=self.dropout if self.training else 0.0)
        return self._out(read.transpose(1, 2).flatten(2))

    def _out(self, read: Tensor) -> Tensor:
        last = self.out_proj
        return F.linear(read, last.weight, last.bias) if self._reads_out_proj else last(read)  # type: ignore[no-any-return]

    def _reset_parameters(self) -> None:
        """Called by torch's constructor, and by transformers for a module that a checkpoint does not have."""
        super()._reset_parameters()
        mapping = self._modules.get("mapping")
        if isinstance(mapping, Mapping) and not mapping._is_hf_initialized:
            mapping.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the parameters as the constructor did, for memory that ``to_empty`` left uninitialised.

        `out_proj` has a method of its own.
        """
        self._reset_parameters()

    def merge_masks(self, *given: Any) -> Any:
        """Called by ``nn.TransformerEncoderLayer`` before its fused softmax, which a hook of this module keeps away."""
        raise RuntimeError(
            f"the layer would compute softmax instead of {self.mapping}, since the attention's forward pre-hooks were removed; "
            "call torch.backends.mha.set_fastpath_enabled(False)"
        )

    def _masks(
        self, q: Tensor, S: int, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Key padding mask and attention mask (bool, True = keep) and the additive score bias, broadcastable to
        ``[B, H, T, S]``. None means that all keys are kept or that no bias is added."""
        B, H, T, _ = q.shape
        alone = attn_mask is not None and attn_mask.ndim == 2
        shapes: Any = ((T, S), (T, S)) if alone else ((B * H, T, S), (B, H, T, S))
        found, bias = {}, None
        for name, given, shape, view in (
            ("key_padding_mask", key_padding_mask, (B, S), (B, 1, 1, S)),
            ("attn_mask", attn_mask, *shapes),
        ):
            if given is None:
                continue
            if given.shape != shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}; it should be {shape}")
            keep, added = (~given, None) if given.dtype == torch.bool else separate(given)
            found[name] = keep.reshape(view)
            if added is not None and (
                given.requires_grad or foreign(given) or asynchronous(given) or bool(added.any())
            ):
                bias = added.reshape(view) if bias is None else bias + added.reshape(view)
        return found.get("key_padding_mask"), found.get("attn_mask"), bias


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a & b


def replace(model: nn.Module, mapping: str | nn.Module = "sparsemax", **params: Any) -> int:
    """Give every ``torch.nn.MultiheadAttention`` in ``model`` a mapping, and make it our `MultiheadAttention`, in place.

    Each module stays the same object with the same parameters, buffers, hooks, parametrizations and attributes; only its
    class changes, and it gets a ``mapping``. Names that share a module still share it. A subclass whose forward is
    torch's stays an instance of that subclass. A module that is our `MultiheadAttention` already gets the new mapping.

    Returns:
        The number of modules that now have the mapping; a module with several names counts once.
    Raises:
        ValueError: the model has no ``torch.nn.MultiheadAttention``, or one has its own forward; the mapping does not fit
            (`MultiheadAttention`), or has learned parameters that PEFT would not save. Then the model is unchanged.
    """
    found = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.MultiheadAttention)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} contains no torch.nn.MultiheadAttention; for models of transformers use "
            "sa.integrations.transformers, for code that calls scaled_dot_product_attention use sa.integrations.sdpa; "
            "in code that calls F.multi_head_attention_forward itself, write sa.nn.MultiheadAttention instead, and in code "
            "that calls softmax, sa.sparsemax(scores, mask=keep) or another mapping"
        )
    if refused := [
        f"{name or 'model'} ({type(part).__name__}) has {why}" for name, part in found if (why := _why_not(part))
    ]:
        raise ValueError(
            f"{'; '.join(refused)}: replace cannot give it a mapping, and changed nothing. Derive the class from "
            "sa.nn.MultiheadAttention, or call replace on the other parts of the model"
        )
    ready = [
        (part, part.__class__ if isinstance(part, MultiheadAttention) else _ours(type(part)),
         _per_head(usable(mapping, params).train(part.training), part))
        for _, part in found
    ]  # fmt: skip
    learns = any(p.requires_grad for *_, made in ready for p in made.parameters())
    if learns and any(type(part).__module__.startswith("peft.") for part in model.modules()):
        raise ValueError(
            "PEFT has wrapped the model already and would not save what the mapping learns: call replace first, then "
            "get_peft_model, with modules_to_save=['mapping'] in its configuration"
        )
    part: Any
    for part, kind, made in ready:
        if part.__class__ is not kind:
            part.__class__ = kind
            part.register_forward_pre_hook(_unfused)
            # torch never calls out_proj, so that this norm, which is computed in a hook, has no effect on its weight.
            hooks = [hook for inner in part.out_proj.modules() for hook in inner._forward_pre_hooks.values()]
            part._reads_out_proj = any(isinstance(hook, SpectralNorm) for hook in hooks)
        part.mapping = made
    for whole in model.modules():
        if isinstance(whole, nn.TransformerEncoder):
            whole.use_nested_tensor = False  # our module would convert the nested tensors in every layer
    return len(ready)


def _why_not(part: nn.MultiheadAttention) -> str:
    """The reason why a module cannot be replaced, or an empty string."""
    if isinstance(part, MultiheadAttention):
        return ""
    if type(part).forward is not nn.MultiheadAttention.forward or "forward" in vars(part):
        return "a forward of its own"
    used = [name for name in ("mapping", *vars(MultiheadAttention)) if not hasattr(nn.MultiheadAttention, name)]
    taken = [name for name in used if hasattr(part, name) and name != "reset_parameters"]
    return f"an attribute {taken[0]!r} of its own" if taken else ""


def _ours(theirs: type) -> Any:
    """The class of a replaced module of the class ``theirs``, which is torch's or inherits its forward."""
    if theirs is nn.MultiheadAttention:
        return MultiheadAttention
    if theirs.__module__.partition(".")[0] != "torch":
        return _joined(theirs)
    # torch made this class for one module (parametrizations, FSDP), and later takes properties and bases from it.
    bases = tuple(_ours(base) if issubclass(base, nn.MultiheadAttention) else base for base in theirs.__bases__)
    members = {name: x for name, x in vars(theirs).items() if name not in ("__dict__", "__weakref__")}
    return type(theirs.__name__, bases, members)


@functools.cache
def _joined(theirs: type) -> type:
    """A class that is ``theirs`` and our `MultiheadAttention`; it has the name of ``theirs``."""
    members = {"__module__": theirs.__module__, "__qualname__": theirs.__qualname__, "__reduce_ex__": _reduced}
    return type(theirs.__name__, (theirs, MultiheadAttention), members)


def _reduced(self: Any, protocol: Any) -> Any:
    """For pickle, which finds ``theirs`` under the name of the class that `_joined` made of it."""
    return _empty, (type(self).__bases__[0],), *object.__reduce_ex__(self, protocol)[2:]


def _empty(theirs: type) -> Any:
    return object.__new__(_joined(theirs))


__all__ = ["MultiheadAttention", "replace"]
