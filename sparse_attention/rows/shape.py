"""Convert tensors to rows, in float32 or float64 with the attention dimension last, and convert results back."""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..kernels.reference.rows import WITHOUT_FLOAT64

FULL = frozenset((torch.float32, torch.float64))
_HALF = frozenset((torch.float16, torch.bfloat16))

# The context of a call: is it inside a torch.func transform, is_grads_batched=True, torch.compile, or a mode that
# intercepts every operation?
transformed = torch._C._are_functorch_transforms_active
batched = torch._C._functorch.is_legacy_batchedtensor
compiling = torch.compiler.is_compiling
dispatch_modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
PLAIN = frozenset((Tensor, torch.nn.Parameter))
STRIDED = torch.strided
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def foreign(x: Tensor) -> bool:
    """True if only torch's dispatcher can read ``x``, so that no kernel may use its memory.

    This holds for subclasses (FakeTensor, DTensor), lazily negated or zero tensors, and meta tensors, and under
    torch.compile, jit.trace and modes (make_fx).
    """
    return (
        compiling()
        or x.__class__ not in PLAIN
        or dispatch_modes() > 0
        or function_modes() > 0
        or _tracing() is not None
        or x.is_neg()
        or x._is_zerotensor()
        or x.is_meta
    )


def tensor(x: Any, name: str = "scores") -> None:
    """Raise TypeError if ``x`` is not a tensor, or not dense: nested, sparse or quantised."""
    if not isinstance(x, Tensor):
        way = "convert it with torch.as_tensor"
        if type(x).__module__ == "torch.fx.proxy":
            way = "torch.fx.symbolic_trace sees modules of this library, not functions: use sa.make or sa.nn"
        raise TypeError(f"{name} is a {type(x).__name__}, not a tensor; {way}")
    if x.is_nested or x.layout is not STRIDED or x.is_quantized:
        other = ("quantised", "dequantize()") if x.is_quantized else (str(x.layout), "to_dense()")
        kind, way = ("nested", "torch.nested.to_padded_tensor and pass a mask") if x.is_nested else other
        raise TypeError(f"{name} is a {kind} tensor; it must be dense: convert it with {way}")


def as_node(module: torch.nn.Module, first: Any, *args: Any, **given: Any) -> Any:
    """The call of a module as one node, if torch.fx.symbolic_trace makes it: a leaf, as torch's own modules; otherwise None."""
    fx = sys.modules.get("torch.fx")
    if fx is None or not isinstance(first, fx.Proxy) or not hasattr(first.tracer, "path_of_module"):
        return None
    return first.tracer.create_proxy("call_module", first.tracer.path_of_module(module), (first, *args), given)


def jagged(x: Any) -> bool:
    """True for a nested tensor with ``layout=torch.jagged``, whose rows are computed by `ragged.over_rows`."""
    return isinstance(x, Tensor) and x.is_nested and x.layout is torch.jagged


def constant(compute: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """What is computed, as ordinary tensors, which may be kept, whatever the mode (torch.inference_mode, a default device)."""
    if torch.compiler.is_dynamo_compiling():
        return compute(*args, **given)
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        return compute(*args, **given)


def kept(size: int | None = None) -> Callable[[AnyFunction], AnyFunction]:
    """Decorator: keep the `constant` results for the last ``size`` arguments, for all if None.

    Under a mode or a transform nothing is kept, since its tensors are invalid outside of it.
    """

    def decorate(compute: Any) -> Any:
        held = functools.lru_cache(size)(functools.partial(constant, compute))

        @functools.wraps(compute)
        def either(*args: Any, **given: Any) -> Any:
            passing = torch.compiler.is_dynamo_compiling() or dispatch_modes() > 0 or transformed()
            return compute(*args, **given) if passing else held(*args, **given)

        return either

    return decorate


def in_float64(function: AnyFunction) -> AnyFunction:
    """Decorator: compute with the tensors of a device without float64 (MPS) on the CPU, and move the results back."""

    @functools.wraps(function)
    def moved(*args: Any, **given: Any) -> Any:
        device = next((x.device for x in (*args, *given.values()) if isinstance(x, Tensor)), None)
        if device is None or device.type not in WITHOUT_FLOAT64:
            return function(*args, **given)
        warnings.warn(f"{function.__name__} computes on the CPU: {device.type} has no float64", stacklevel=2)

        def back(x: Tensor) -> Tensor:
            return (x.float() if x.dtype == torch.float64 else x).to(device)

        args, given = tree_map_only(Tensor, Tensor.cpu, (args, given))
        return tree_map_only(Tensor, back, function(*args, **given))

    return moved  # type: ignore[return-value]


def certain(fact: Any) -> bool:
    """True if ``fact``, a comparison of sizes, holds for every size for which a graph is recorded."""
    if fact is True or fact is False:
        return fact
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return not isinstance(fact, Tensor) and statically_known_true(fact)  # under torch.jit.trace, it is a tensor


def autocasts(x: Tensor) -> bool:
    """True if torch.autocast is enabled for the device of ``x``; some devices (meta) have no autocast."""
    kind = "cuda" if x.is_cuda else x.device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)  # torch 2.11 cannot compile it
    return known and torch.is_autocast_enabled(kind)


def asynchronous(x: Tensor) -> bool:
    """True if reading a value of ``x`` would make the host wait for a device.

    In that case, checks set rows to NaN instead of raising an error.
    """
    return x.is_cuda


def lengths_of(keep: Tensor) -> Tensor | None:
    """The number of keys, int64 ``[...]``, from ``keep [..., m]``, True = keep.

    None if the keys are not right-padded, or if the answer would need a value from a device or inside a compiled graph.
    """
    if foreign(keep) or asynchronous(keep) or transformed():
        return None
    return keep.sum(-1) if bool((keep[..., 1:] <= keep[..., :-1]).all()) else None


def last(scores: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Convert scores to float32 or float64 with the attention dimension last and -inf where masked.

    Returns the converted scores, and a function that converts a result back to the original layout and dtype.

    Raises:
        TypeError: the scores are not a floating-point tensor, or the mask is not boolean.
        ValueError: the mask does not broadcast to the scores.
    """
    tensor(scores)
    dtype = scores.dtype
    if dim.__class__ is not int:
        dim = whole(dim)
    if not dtype.is_floating_point:
        raise TypeError(f"scores have dtype {dtype}; attention needs floating point: convert with scores.float()")
    wide = scores if dtype in FULL else scores.float()
    out_dtype = dtype_of_result(scores)
    if mask is not None:
        checked(mask, scores)
        wide = wide.masked_fill(~mask, -torch.inf)
    flat = wide.ndim == 0
    # A view that changes nothing would make inductor write into the attention that a compiled backward has saved.
    there = dim == -1 or dim == wide.ndim - 1
    x = wide.reshape(1) if flat else wide if there else wide.movedim(dim, -1)

    def restore(p: Tensor) -> Tensor:
        p = p.reshape(()) if flat else p if there else p.movedim(-1, dim)
        return p if p.dtype == out_dtype else p.to(out_dtype)

    return x, restore


def whole(dim: Any) -> int:
    """``dim`` as an int. Raises TypeError for anything else."""
    try:
        if not isinstance(dim, (bool, Tensor)):
            return operator.index(dim)
    except TypeError:
        pass
    shown = f" of shape {tuple(dim.shape)}" if isinstance(dim, Tensor) else f"={dim!r}"
    raise TypeError(f"dim{shown} is not a whole number; give masks and hyperparameters by name, as in mask=keep")


def dtype_of_result(scores: Tensor) -> torch.dtype:
    """The dtype of the result, as in torch.softmax: under autocast, float32 on a GPU and the input's dtype on a CPU."""
    keeps_full = scores.dtype in _HALF and scores.is_cuda and torch.is_autocast_enabled("cuda")
    return torch.float32 if keeps_full else scores.dtype


def checked(mask: Tensor, scores: Tensor) -> Tensor:
    """The mask in the shape of the scores. Raises TypeError if it is not boolean, and ValueError as `expanded` does."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask={mask!r} is not a mask; it must be a boolean tensor, True = keep")
    if mask.layout is not STRIDED or mask.is_nested:
        tensor(mask, "mask")
    if mask.dtype != torch.bool:
        raise not_boolean(mask)
    if mask.device != scores.device and mask.ndim:
        where, here = mask.device, scores.device
        raise ValueError(f"the mask is on {where} and the scores are on {here}; pass mask.to({str(here)!r})")
    # Dimensions first: comparing [n, n] with [B, H, n, n] would make a recorded graph depend on whether n is B.
    same = mask.ndim == scores.ndim and mask.shape == scores.shape
    return mask if same else expanded(mask, scores, "mask")


def fits(mask: Tensor, sizes: Sequence[int], device: torch.device, dtype: torch.dtype = torch.bool) -> bool:
    """True if `checked` finds nothing wrong with a mask, whose class is in `PLAIN`, and if it is on this device."""
    if mask.dtype is not dtype or mask.device != device or mask.layout is not STRIDED or mask.is_nested:
        return False
    return mask.shape == sizes or _expands(mask.shape, sizes)


def not_boolean(mask: Tensor) -> TypeError:
    """The error for a mask of numbers."""
    added, lengths = "0 and -inf to add by mask == 0", "lengths by torch.arange(n) < lengths[:, None]"
    way = added if mask.dtype.is_floating_point else lengths
    return TypeError(f"mask has dtype {mask.dtype}; it must be boolean, True = keep. Convert 1/0 by mask.bool(), {way}")


def expanded(value: Tensor, scores: Tensor, name: str) -> Tensor:
    """``value`` expanded to the shape of the scores. Raises ValueError if it does not broadcast."""
    try:
        return value.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        ) from None


def broadcasts(shape: Sequence[int], into: Sequence[int]) -> bool:
    """True if a tensor of this shape can be expanded to the shape ``into``."""
    return len(shape) <= len(into) and all(size in (there, 1) for size, there in zip(reversed(shape), reversed(into)))


_expands = functools.lru_cache(1024)(broadcasts)


def per_row(value: Any, scores: Tensor, dim: int, name: str) -> Any:
    """Reshape a hyperparameter tensor to fit the rows of ``last(scores, dim)``: ``[..., 1]`` with the leading shape.

    The tensor may have one value; or any shape that broadcasts to the scores without ``dim``; or as many dimensions as
    the scores, with size 1 at ``dim``. With scores ``[B, H, T, n]``, for example, ``[H, 1]`` has one value per head and
    ``[B, H, T]`` has one per row. Numbers are returned unchanged.

    Raises:
        ValueError: the tensor has any other shape.
    """
    if not isinstance(value, Tensor):
        return value
    value = value.to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
    if value.ndim == 0:  # one number may be elsewhere, as in torch
        value = value.to(scores.device, non_blocking=True)
    if value.numel() == 1:
        return value.reshape([1] * max(scores.ndim, 1))
    lead = list(scores.shape)
    del lead[dim]
    if value.ndim == scores.ndim and value.shape[dim] == 1:
        shaped = value.movedim(dim, -1)
    else:
        shaped = value.unsqueeze(-1)
    if not broadcasts(shaped.shape[:-1], lead):
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} fits neither the rows {tuple(lead)} of the scores nor, "
            f"with size 1 at dim={dim}, the scores {tuple(scores.shape)}"
        )
    # The result has as many dimensions as the scores, so that calling this function again changes nothing.
    return shaped.reshape(*[1] * (scores.ndim - shaped.ndim), *shaped.shape)


def scaled(x: Tensor, gamma: float | Tensor) -> Tensor:
    """Rows ``x [..., n]`` divided by ``gamma``, a number or ``[..., 1]``; differentiable in gamma; -inf stays -inf."""
    if not isinstance(gamma, Tensor):
        return x if gamma == 1.0 else x / gamma
    keep = x.detach() != -torch.inf
    # -inf / gamma has no derivative in gamma, so divide only the kept scores.
    return (x.masked_fill(~keep, 0.0) / gamma).masked_fill(~keep, -torch.inf).to(x.dtype)
