"""``sa.nn.MultiheadAttention`` replaces ``torch.nn.MultiheadAttention`` and uses a mapping instead of softmax.

attend = sa.nn.MultiheadAttention(256, 8, batch_first=True, mapping="entmax", alpha=1.5)
sa.nn.replace(model, "sparsemax")      # replaces every torch.nn.MultiheadAttention in a model and keeps the weights
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fused import sparse_attention
from .fused.call import over_rows
from .fused.reading import read as product
from .fused.reading import scores, weighed
from .integrations.masks import separate
from .registry import Mapping, make, spec
from .rows.shape import asynchronous, foreign, lengths_of


def over_keys(mapping: str | nn.Module, **params: Any) -> nn.Module:
    """The mapping for attention over keys: built from a name with `params`; a module is returned unchanged.

    Raises:
        ValueError: parameters were given together with a module; the module does not work along the last dimension,
            which is the dimension of the keys.
    """
    if isinstance(mapping, str):
        return make(mapping, **params)
    if params:
        raise ValueError(f"{', '.join(params)}: parameters go with a mapping's name; {mapping!r} already has its own")
    if getattr(mapping, "dim", -1) != -1:
        raise ValueError(
            f"{mapping!r} maps along dim={mapping.dim}; attention's keys are the last dimension: make it without dim"
        )
    return mapping


def _usable(mapping: str | nn.Module, params: dict[str, Any]) -> nn.Module:
    """`over_keys`, which also checks that scores and a mask are all that the mapping needs."""
    if isinstance(mapping, str):
        over_rows(spec(mapping))
        if missing := [name for name in spec(mapping).inputs if name not in params]:
            raise ValueError(f"{mapping} needs {', '.join(missing)} at each call, which this module does not pass on")
    return over_keys(mapping, **params)


def _per_head(made: nn.Module, heads: int, at: Tensor) -> nn.Module:
    """The mapping with one learned value for each head, on the device of `at`."""
    return (made.spread(heads, 1) if isinstance(made, Mapping) else made).to(at.device)


class MultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with a mapping instead of softmax.

    The constructor arguments, parameter names, initial values and call signature are the same as torch's. State dicts
    can be loaded in both directions. The module works inside ``nn.TransformerEncoderLayer`` and
    ``nn.TransformerDecoderLayer``; it disables the layer's fused path in eval mode. If the mapping learns a
    hyperparameter (``alpha="learned"``), each head has its own value.

    Masks follow torch, which is the opposite of the rest of this library: in a boolean mask, **True hides a key**. A
    floating-point mask is added to the scores; -inf and numbers at or below -5000 (`integrations.masks.HIDDEN`) hide a
    key.

    Two cases differ from torch, which gives NaN or ignores an argument there: a query that sees no key gets zeros
    (before the output projection), and nested tensors raise an error.

    Args:
        mapping: a name from ``sa.names("simplex")`` or ``sa.names("unnormalised")``, or a module made by `sa.make`.
        params: parameters of a mapping given by name.
    Raises:
        ValueError: as in torch's module; also if parameters are given together with a module, or the mapping does not
            know them, does not work on rows of scores or needs further inputs.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None, *, mapping: str | nn.Module = "sparsemax", **params: Any,
    ) -> None:  # fmt: skip
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}")
        made = _usable(mapping, params)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )  # fmt: skip
        self._qkv_same_embed_dim = (
            False  # torch's layers read this: with True they would use their fused softmax instead
        )
        self.mapping: Any = _per_head(made, num_heads, self.out_proj.weight)

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attend, as torch's module does.

        Args:
            query: ``[T, B, E]``, ``[B, T, E]`` with batch_first, or ``[T, E]``. key, value: the same, with S positions.
            key_padding_mask: ``[B, S]`` or ``[S]``; either bool (True = hidden) or floating point (added to the
                scores).
            need_weights: also return the weights. Without them, the fastest path is used (`sa.sparse_attention`).
            attn_mask: ``[T, S]`` or ``[B * heads, T, S]``; either bool (True = hidden) or floating point (added to the
                scores).
            average_attn_weights: return the mean of the weights over the heads.
            is_causal: states that attn_mask is the causal mask; attn_mask must be passed too.
        Returns:
            The output in the shape of query, and the weights: ``[B, T, S]`` or ``[B, heads, T, S]`` (without B for
            unbatched input), or None if need_weights is False.
        Raises:
            ValueError: a tensor is nested, or a mask has the wrong shape. RuntimeError: is_causal without attn_mask.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            raise ValueError(
                "nested tensors are not supported; pad them with torch.nested.to_padded_tensor and pass key_padding_mask"
            )
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
        out = self.out_proj(read.transpose(1, 2).flatten(2))
        out = out.squeeze(0) if single else out if self.batch_first else out.transpose(0, 1)
        if not need_weights or weights is None:
            return out, None
        weights = weights.mean(1) if average_attn_weights else weights
        return out, weights.squeeze(0) if single else weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projected q, k and v, each ``[B, H, positions, d]``, with the constructor's extra keys and values."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, b.expand(x.shape[0], -1, -1)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return tuple(x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))  # type: ignore[return-value]

    def _masks(
        self, q: Tensor, S: int, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Key padding mask and attention mask (bool, True = keep) and the additive score bias, broadcastable to
        ``[B, H, T, S]``. None means that all keys are kept or that no bias is added."""
        B, H, T, _ = q.shape
        alone = attn_mask is not None and attn_mask.ndim == 2
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((B, S), (B, 1, 1, S)),
            ((T, S), (T, S)) if alone else ((B * H, T, S), (B, H, T, S)),
        ]
        found: list[Tensor | None] = []
        bias = None
        for name, given, (shape, view) in zip(("key_padding_mask", "attn_mask"), (key_padding_mask, attn_mask), shapes):
            if given is not None and given.shape != shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}; it should be {shape}")
            if given is None or given.dtype == torch.bool:
                keep = None if given is None else ~given
            else:
                keep, added = separate(given)
                if given.requires_grad or foreign(given) or asynchronous(given) or bool(added.any()):
                    added = added.reshape(view)
                    bias = added if bias is None else bias + added
            found.append(None if keep is None else keep.reshape(view))
        return found[0], found[1], bias


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a & b


def replace(model: nn.Module, mapping: str | nn.Module = "sparsemax", **params: Any) -> int:
    """Replace every ``torch.nn.MultiheadAttention`` in ``model`` by our `MultiheadAttention` with the same parameters.

    A module that is our `MultiheadAttention` already gets the new mapping.

    Returns:
        The number of modules that now have the mapping.
    Raises:
        ValueError: the model has no ``torch.nn.MultiheadAttention``, or is one itself; the mapping or its parameters do
            not fit (`MultiheadAttention`).
    """
    if type(model) is nn.MultiheadAttention:
        raise ValueError(
            "a module cannot replace itself; give replace the model that contains it, or make sa.nn.MultiheadAttention"
        )
    if not any(isinstance(part, nn.MultiheadAttention) for part in model.modules()):
        raise ValueError(
            f"{type(model).__name__} contains no torch.nn.MultiheadAttention; for models of transformers use "
            "sa.integrations.transformers, for code that calls scaled_dot_product_attention use sa.integrations.sdpa"
        )
    count = 0
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # the encoder would pass nested tensors, which our layers do not accept
        for name, child in part.named_children():
            if type(child) is nn.MultiheadAttention:
                setattr(part, name, _ours(child, mapping, params))
                count += 1
            elif isinstance(child, MultiheadAttention):
                made = _usable(mapping, params).train(child.training)
                child.mapping = _per_head(made, child.num_heads, child.out_proj.weight)
                count += 1
    return count


def _ours(theirs: nn.MultiheadAttention, mapping: str | nn.Module, params: dict[str, Any]) -> MultiheadAttention:
    at = theirs.out_proj.weight
    ours = MultiheadAttention(
        theirs.embed_dim, theirs.num_heads, theirs.dropout, theirs.in_proj_bias is not None, theirs.bias_k is not None,
        theirs.add_zero_attn, theirs.kdim, theirs.vdim, theirs.batch_first, at.device, at.dtype, mapping=mapping, **params,
    )  # fmt: skip
    for name, parameter in theirs.named_parameters():
        owner, _, last = name.rpartition(".")
        setattr(
            ours.get_submodule(owner), last, parameter
        )  # the same object, so an existing optimiser still updates it
    return ours.train(theirs.training)


__all__ = ["MultiheadAttention", "replace"]
