"""`scaled_dot_product_attention` with a mapping instead of softmax, in the signature and conventions of torch's function.

from sparse_attention.integrations import sdpa
out = sdpa.scaled_dot_product_attention(q, k, v, is_causal=True, mapping="entmax", alpha=1.5)
with sdpa.use("sparsemax"):        # for code of others that calls torch's function
    out = model(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..fused import sparse_attention
from ..fused.call import mapped
from ..rows.shape import asynchronous, foreign
from .masks import separate

_THEIRS = F.scaled_dot_product_attention
_WITHOUT = {  # functions that compute attention by softmax without calling scaled_dot_product_attention
    F.multi_head_attention_forward: "torch.nn.MultiheadAttention",
    torch._native_multi_head_attention: "torch.nn.MultiheadAttention",
    torch._transformer_encoder_layer_fwd: "torch.nn.TransformerEncoderLayer",
}


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
    mapping: str | nn.Module | Callable[..., Tensor] = "sparsemax", **params: Any,
) -> Tensor:  # fmt: skip
    """Attention with a mapping, called as `torch.nn.functional.scaled_dot_product_attention` is.

    Args:
        query: ``[..., H, n, d]``. key: ``[..., G, m, d]``. value: ``[..., G, m, e]``.
        attn_mask: broadcastable to ``[..., H, n, m]``: bool (True = keep), or a number that is added to the score,
            where -inf and numbers at or below -5000 hide the key (`integrations.masks.HIDDEN`).
        dropout_p: the share of the weights set to zero, in training and in evaluation alike.
        is_causal: query i sees keys 0 to i, also where n and m differ (`sparse_attention` aligns the last ones).
        scale: factor for the scores; by default ``d ** -0.5``.
        enable_gqa: H may be a multiple of G; head h reads group ``h // (H // G)``.
        mapping, params: as in `sparse_attention`.
    Returns:
        ``[..., H, n, e]``; a query that sees no key gets zeros.
    Raises:
        TypeError, ValueError: as in `sparse_attention`; ValueError also for numbers of heads that differ without
            enable_gqa. RuntimeError: is_causal together with attn_mask.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("is_causal=True together with attn_mask: pass one mask that has both")
    if (
        query.ndim > 2
        and not enable_gqa
        and 1 not in (heads := (query.shape[-3], key.shape[-3]))
        and heads[0] != heads[1]
    ):
        raise ValueError(f"query has {heads[0]} heads and key {heads[1]}; for grouped queries pass enable_gqa=True")
    if is_causal and query.shape[-2] != key.shape[-2]:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        is_causal = False
    bias = None
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask, bias = separate(attn_mask)
        if not (bias.requires_grad or foreign(bias) or asynchronous(bias) or bool(bias.any())):
            bias = None
    return sparse_attention(
        query, key, value, mapping, attn_mask, is_causal, scale=scale, dropout=dropout_p, bias=bias, **params
    )  # fmt: skip


@contextmanager
def use(mapping: str | nn.Module | Callable[..., Tensor], **params: Any) -> Iterator[None]:
    """Within the block, every call of torch's `scaled_dot_product_attention` in this thread uses the mapping.

    torch.nn.MultiheadAttention and the layers of nn.Transformer often compute attention without that function; within
    the block they raise an error, since `sa.nn.replace` is the way to give them a mapping.

    Args:
        mapping, params: as in `sparse_attention`.
    Raises:
        ValueError: the mapping or a parameter is unknown. RuntimeError: a module of torch computes attention without
            the function; nothing in the block called the function.
    """
    mapped(mapping, params)
    mode = _Mode(mapping, params)
    with mode:
        yield
    if not mode.calls:
        raise RuntimeError(
            "nothing in this block called torch's scaled_dot_product_attention, so no attention was replaced; "
            "sa.nn.replace changes modules of torch.nn, sa.integrations.transformers models of transformers"
        )


class _Mode(TorchFunctionMode):
    def __init__(self, mapping: Any, params: dict[str, Any]):
        super().__init__()
        self.mapping, self.params, self.calls = mapping, params, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _THEIRS:
            self.calls += 1
            given = {**(kwargs or {}), **self.params, "mapping": self.mapping}
            return scaled_dot_product_attention(*args, **given)
        if func in _WITHOUT:
            raise RuntimeError(
                f"{_WITHOUT[func]} computes softmax itself, which sdpa.use cannot replace; use sa.nn.replace(model, ...)"
            )
        return func(*args, **(kwargs or {}))


__all__ = ["scaled_dot_product_attention", "use"]
