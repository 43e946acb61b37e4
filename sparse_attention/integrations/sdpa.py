"""`scaled_dot_product_attention` with a mapping instead of softmax, in the signature and conventions of torch's function.

from sparse_attention.integrations import sdpa
out = sdpa.scaled_dot_product_attention(q, k, v, is_causal=True, mapping="entmax", alpha=1.5)
with sdpa.use("sparsemax"):        # for code that calls torch's function
    out = model(x)
"""

from __future__ import annotations

import collections
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.weak import WeakTensorKeyDictionary

from ..attention import sparse_attention
from ..attention.attention import replacing, torchs
from ..attention.call import checked, made, mapped
from ..attention.nested import by_length, unpacked
from ..errors import Refused
from ..masks import separate
from ..rows.shape import PLAIN, asynchronous, autocasts, foreign, tensor

_THEIRS = F.scaled_dot_product_attention
_WITHOUT = {  # functions that compute attention by softmax without calling scaled_dot_product_attention
    F.multi_head_attention_forward: "torch.nn.MultiheadAttention",
    torch._native_multi_head_attention: "torch.nn.MultiheadAttention",
    torch._transformer_encoder_layer_fwd: "torch.nn.TransformerEncoderLayer",
}


_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
_ATTENDS = re.compile("attention|attn", re.IGNORECASE)  # in the class name of an attention module
_PRODUCTS = {"matmul", "__matmul__", "bmm", "einsum"}
_KEEPING = set("dropout to type_as float half contiguous view reshape masked_fill".split())  # these are still weights


class ArgumentError(Refused, TypeError, ValueError, RuntimeError):
    """A TypeError or ValueError of `sparse_attention` where torch's function raises RuntimeError."""


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
    mapping: str | nn.Module | Callable[..., Tensor] = "sparsemax", **params: Any,
) -> Tensor:  # fmt: skip
    """Attention with a mapping, called as `torch.nn.functional.scaled_dot_product_attention` is.

    With softmax, this is torch's function. Other mappings follow its conventions, except that a query that sees no key
    gives zeros on every path.

    Args:
        query: ``[..., H, n, d]``. key: ``[..., G, m, d]``. value: ``[..., G, m, e]``. The first dimensions broadcast, and
            may be missing. All three may be nested tensors, without attn_mask.
        attn_mask: broadcastable to ``[..., H, n, m]``: bool (True = keep), or numbers of float32 or query's dtype, which
            are added to the scores, where -inf and numbers at or below -5000 hide the key (`masks.HIDDEN`).
            Also torch's causal_lower_right and causal_upper_left.
        dropout_p: the share of the weights set to zero, in training and in evaluation.
        is_causal: query i sees keys 0 to i, also where n and m differ (`sparse_attention` aligns the last ones).
        scale: factor for the scores; by default ``d ** -0.5``.
        enable_gqa: H may be a multiple of G; head h reads group ``h // (H // G)``.
        mapping, params: as in `sparse_attention`.
    Returns:
        ``[..., H, n, e]``; nested if query is. In memory, four dimensions are in the order of query's, as in torch.
    Raises:
        TypeError, ValueError: as in `sparse_attention`; those about tensors, shapes and dropout_p are RuntimeErrors, too,
            since torch raises those. RuntimeError: is_causal together with attn_mask.
    """
    mapping, params = made(mapping, params)
    _, (alpha, _, factor, *_) = mapped(mapping, params)
    special = getattr(query, "is_nested", False) or (attn_mask is not None and attn_mask.__class__ not in PLAIN)
    if alpha == 1.0 and not (replacing and special):  # these need torch's function itself
        if factor != 1.0:
            scale = factor * (query.shape[-1] ** -0.5 if scale is None else scale)
        if isinstance(attn_mask, Tensor) and attn_mask.ndim < 2:
            attn_mask = attn_mask.expand(1, key.shape[-2])
        return torchs()(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not getattr(x, "is_nested", False):
            tensor(x, name)
    if is_causal and attn_mask is not None:
        raise RuntimeError("is_causal=True cannot be combined with attn_mask; pass one mask that does both")
    if query.is_nested:
        given = (dropout_p, is_causal, scale, enable_gqa)
        return _nested(query, key, value, attn_mask, given, {"mapping": mapping, **params})
    query, key, value = _broadcast(query, key, value, enable_gqa)
    n, m, bias = query.shape[-2], key.shape[-2], None
    from_start = is_causal
    if attn_mask is not None and attn_mask.__class__ not in PLAIN:
        from torch.nn.attention.bias import CausalBias, CausalVariant  # needs more than torch's core

        if isinstance(attn_mask, CausalBias):
            if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (n, m):
                raise ArgumentError(f"attn_mask is for {attn_mask.seq_len_q} queries and {attn_mask.seq_len_kv} keys; make it for {n} queries and {m} keys")  # fmt: skip
            is_causal, from_start, attn_mask = True, attn_mask.variant == CausalVariant.UPPER_LEFT, None
    if from_start and n != m:
        attn_mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril()
        is_causal = False
    if attn_mask is not None:
        tensor(attn_mask, "attn_mask")
        kind = attn_mask.dtype
        if kind not in (torch.bool, torch.float32, query.dtype) and not autocasts(query):
            raise ArgumentError(f"attn_mask is {kind}; it must be bool, torch.float32 or query's {query.dtype}")
        if kind != torch.bool:
            attn_mask, bias = separate(attn_mask)
            if not (bias.requires_grad or foreign(bias) or asynchronous(bias) or bool(bias.any())):
                bias = None
    all_dropped = dropout_p == 1
    dropout = 0.0 if all_dropped else dropout_p
    if isinstance(scale, Tensor) and not scale.requires_grad:
        scale = float(scale)
    arguments = {"mask": attn_mask, "causal": is_causal, "scale": scale, "dropout": dropout, "bias": bias, **params}
    try:
        out = sparse_attention(query, key, value, mapping, **arguments)
    except (TypeError, ValueError):
        try:  # an error of the arguments is a RuntimeError, too
            checked(query, key, value, mapping, **arguments)
        except (TypeError, ValueError) as error:
            raise ArgumentError(str(error)) from None
        raise
    out = F.dropout(out, 1.0) if all_dropped else out
    # Like torch's result, it is laid out as the query, so that .transpose(1, 2).view(B, n, H * e) works where it does there.
    if out.ndim == 4 and query.stride(1) < query.stride(2):
        return out.transpose(1, 2).contiguous().transpose(1, 2)
    return out


def _broadcast(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as `sparse_attention` takes them: with as many dimensions, and as many heads in k as in v."""
    most = max(q.ndim, k.ndim, v.ndim)
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ArgumentError(f"{shapes}: each needs at least 2 dimensions")
    if most == 2:
        return q, k, v
    q, k, v = (x[(None,) * (most - x.ndim)] for x in (q, k, v))
    heads, *groups = (x.shape[-3] for x in (q, k, v))
    if grouped:
        if 0 in groups or any(heads % g for g in groups):
            raise ArgumentError(f"{shapes}: the heads (dimension -3) of key and value must divide those of query")
        if groups[0] != groups[1]:
            k, v = (x.repeat_interleave(heads // g, -3) for x, g in zip((k, v), groups))
        return q, k, v
    try:
        (together,) = torch.broadcast_shapes((heads,), (groups[0],), (groups[1],))
    except RuntimeError:
        raise ArgumentError(
            f"query has {heads} heads, key {groups[0]} and value {groups[1]}; give all the same number, or pass enable_gqa=True for grouped queries"
        ) from None
    if heads != together or groups[0] != groups[1]:
        q, k, v = (x.expand(*x.shape[:-3], together, *x.shape[-2:]) for x in (q, k, v))
    return q, k, v


def _nested(q: Tensor, k: Tensor, v: Tensor, mask: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """Attention within each sequence of a nested tensor ``[B, H, *, d]`` or ``[B, *, d]``."""
    if mask is not None or not (k.is_nested and v.is_nested):
        raise ArgumentError("nested tensors need nested query, key and value, and no attn_mask")
    if not q.size(0) == k.size(0) == v.size(0):
        raise ArgumentError(f"query has {q.size(0)} sequences, key {k.size(0)}, value {v.size(0)}; give the same")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, None, *given, **named)

    if q.layout != torch.jagged:
        return torch.nested.as_nested_tensor(list(map(attend, q.unbind(), k.unbind(), v.unbind())))
    try:
        unpacked(q, k, v)
    except (TypeError, ValueError) as error:
        raise ArgumentError(str(error)) from None
    return by_length(attend, q, k, v)


@contextmanager
def use(mapping: str | nn.Module | Callable[..., Tensor], **params: Any) -> Iterator[None]:
    """Within the block, every call of torch's `scaled_dot_product_attention` in this thread uses the mapping.

    Calls that name their mapping (`sa.sparse_attention`, this module's `scaled_dot_product_attention`) keep it.
    In nested blocks, the innermost one decides. If torch.utils.checkpoint runs in the block, the recomputation in the backward
    pass uses the same mapping, also after the block. Attention in any other torch.autograd.Function raises an error, unless
    the block is inside that Function. torch.cond and other operators that run functions in graphs of their own raise one, too.
    torch.nn.MultiheadAttention and the layers of nn.Transformer often do not call torch's function; within
    the block they raise an error: use `sa.nn.replace` for them. At the end of the block, a warning names the modules
    that computed a softmax of their own and multiplied it by something (as weights by values), or have "attention" or
    "attn" in the name of their class. Compiled code is not watched for this.

    Args:
        mapping, params: as in `sparse_attention`.
    Raises:
        ValueError: the mapping or a parameter is unknown. RuntimeError: a module of torch computes attention without
            torch's function; attention runs in a torch.autograd.Function; an operator runs functions in a graph of its own; nothing in
            the block called the function.
    """
    mapped(mapping, params)
    _watch_checkpoints()
    block = _Block(mapping, params, [], [])
    with _within(block):
        yield
    own = ", ".join(f"{name} ({n} call{'s' * (n > 1)})" for name, n in collections.Counter(block.own).items())
    if not block.calls:
        raise RuntimeError(
            "nothing in this block called torch's scaled_dot_product_attention, so the mapping had no effect; "
            + (
                f"attention by a softmax of its own: {own}; let this code call torch's function"
                if own
                else "use sa.nn.replace for modules of torch.nn, sa.integrations.transformers for models of transformers"
            )
        )
    if own:
        warnings.warn(
            f"torch's scaled_dot_product_attention used {mapping} {len(block.calls)} times, but {own} computed softmax "
            "by code of its own, which stays softmax; let that code call torch's function",
            stacklevel=3,
        )


class _Block(NamedTuple):
    mapping: Any
    params: dict[str, Any]
    calls: list[None]  # one entry each
    own: list[str]  # the modules that computed attention by a softmax of their own, an entry for each time
    within: tuple[str, int] | None = None  # the torch.autograd.Function around the block, which runs it again


def _mode() -> _Mode | None:
    """The mode of this thread's blocks. One is enough: below another one, calls would take other paths."""
    return next((m for m in _get_current_function_mode_stack() if isinstance(m, _Mode)), None)


@contextmanager
def _within(block: _Block) -> Iterator[None]:
    with nullcontext(mode) if (mode := _mode()) else _Mode() as entered:
        replacing.append(None)
        entered.blocks.append(block._replace(within=_function_around()))
        try:
            yield
        finally:
            entered.blocks.pop()
            replacing.pop()


@functools.cache
def _watch_checkpoints() -> None:
    """Let torch's checkpoints keep the block of their first pass: the recomputation itself runs without modes."""
    from torch.utils import checkpoint

    first, frame = checkpoint.CheckpointFunction.forward, checkpoint._CheckpointFrame.__init__
    again = staticmethod(lambda ctx, function, *args: first(ctx, _again(function), *args))  # use_reentrant=True
    checkpoint.CheckpointFunction.forward = again  # type: ignore[method-assign, assignment]
    checkpoint._CheckpointFrame.__init__ = (  # type: ignore[method-assign]  # use_reentrant=False
        lambda self, function, *args, **kwargs: frame(self, _again(function), *args, **kwargs)
    )


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called in this thread's innermost block, if any, also after its end."""
    if (mode := _mode()) is None:
        return function
    block = mode.blocks[-1]

    def called(*args: Any, **kwargs: Any) -> Any:
        with _within(block):
            return function(*args, **kwargs)

    return called


def _function_around() -> tuple[str, int] | None:
    """The torch.autograd.Function, if any, whose forward pass makes this call: it records nothing and must recompute it."""
    frame = None if torch.is_grad_enabled() else sys._getframe(1)
    while frame is not None:
        at: Any = frame
        if frame.f_code.co_name == "run" and hasattr(self := frame.f_locals.get("self"), "f_code"):
            at = self  # torch.compile traces a call, which has no frame
        if at.f_code.co_name == "forward" and at.f_code.co_varnames[:1] not in ((), ("self",)):
            ctx: Any = at.f_locals.get(at.f_code.co_varnames[0])
            if isinstance(ctx, torch._C._FunctionBase) and ctx.next_functions:
                return type(ctx).__name__, id(ctx)
        frame = frame.f_back
    return None


def _caller() -> nn.Module | None:
    """The module in whose forward torch's function is called; None if a mapping of this library, or no module, calls it."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "sparse_attention":
            return None
        found = frame.f_locals.get("self")
        if isinstance(found, nn.Module) and not isinstance(found, (nn.Softmax, nn.Softmax2d)):
            return found
        frame = frame.f_back
    return None


# like torch.compiler.assume_constant_result, without importing torch._dynamo
_function_around._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Mode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[_Block] = []
        self.weights = WeakTensorKeyDictionary()  # what a softmax gave: the class of its module

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _THEIRS:
            block = self.blocks[-1]
            block.calls.append(None)
            if (around := _function_around()) and around != block.within:
                told = f"{around[0]} recomputes attention in its backward pass, where sdpa.use has no effect"
                raise RuntimeError(f"{told}; use torch.utils.checkpoint instead")
            given = {**(kwargs or {}), **block.params, "mapping": block.mapping}
            return scaled_dot_product_attention(*args, **given)
        if isinstance(func, HigherOrderOperator) and any(callable(x) for x in args):
            told = f"{func} runs functions in a graph of its own, where sdpa.use has no effect"
            raise RuntimeError(f"{told}; call sa.sparse_attention in these functions, or call {func} outside the block")
        if func in _WITHOUT:
            where, known = _caller(), _WITHOUT[func]
            if isinstance(where, (nn.MultiheadAttention, nn.TransformerEncoderLayer, type(None))):
                told = f"{known} computes softmax itself, which sdpa.use cannot replace; use sa.nn.replace(model, ...)"
            else:
                told = f"{type(where).__name__} calls {func.__name__} itself, which computes softmax and which neither sdpa.use nor sa.nn.replace can change; use sa.nn.MultiheadAttention there, or call F.scaled_dot_product_attention"
            raise RuntimeError(told)
        out = func(*args, **(kwargs or {}))
        if not torch.compiler.is_compiling():
            self._watch(func, args, out)
        return out

    def _watch(self, func: Any, args: Any, out: Any) -> None:
        """Note a module whose softmax has the name of attention, or is multiplied by something, as weights by values."""
        name = getattr(func, "__name__", "")
        if func in _SOFTMAX:
            if (module := _caller()) is not None:
                if _ATTENDS.search(type(module).__name__):
                    self.blocks[-1].own.append(type(module).__name__)
                else:
                    self.weights[out] = type(module).__name__
        elif self.weights and (name in _PRODUCTS or name in _KEEPING):
            for x in args:
                if isinstance(x, Tensor) and (of := self.weights.get(x)) is not None:
                    if name in _KEEPING:
                        self.weights[out] = of
                    else:
                        self.blocks[-1].own.append(of)
                    return


__all__ = ["scaled_dot_product_attention", "use"]
