"""What calls of attention of one kind share: which kernels they take, where that was measured, and what starts them."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .. import triton as rows

# Up to this many queries of a group, without gradients, their scores are stored, see `attention.forward`
_DECODED = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
# Up to this many queries and keys, all keys fit into one block, which has kernels of its own, see ``short_kernels``
SHORT = 128
SHORT_KEYS = (32, 64, 128)  # of such a block: few sizes, since each is compiled
# The forms as the kernels take them. bias: -inf where a mask hides a key, or uint8: the mask alone. powers: float32 [H], 1 / (alpha - 1)
# if each head has its own
FORMS = ("lengths", "spans", "bias", "powers", "scales", "slopes", "sinks")
FEW = 256  # with fewer programs than this, the heads of a group get programs of their own in the backward for keys
_LARGEST = {torch.float32: 64 * 64, torch.float16: 128 * 128, torch.bfloat16: 128 * 128}  # keys times channels
LONG = 2048  # from this many keys on, ``list_kernels`` may be faster
# Whether they are taken, whatever memory they need; None: if they were `measured` as faster, within the limits of `_programs`
LISTED: bool | None = None
PLACES = (96, 128)  # of a list, for alpha = 2 and for others, of which more keys are in the support
_LEAST = 1.4  # alpha, below which hundreds of keys are in the support of random scores, and most lists would be full


def record(device: int | None = None) -> Path:
    """The file in Triton's cache with the numbers of `measured`; ``python -m sparse_attention.kernels.triton --measure`` writes it."""
    from triton import knobs

    return Path(knobs.cache.dir) / f"sparse_attention_short_{torch.cuda.get_device_name(device)}"


@functools.cache
def measured(device: int) -> tuple[int, bool]:
    """The number of keys up to which ``short_kernels`` were faster than blocks on a device, and whether ``list_kernels`` were.

    If not measured, the most that ``short_kernels`` take, and False.
    """
    with suppress(ImportError, AttributeError, OSError, ValueError):
        short, *listed = map(int, record(device).read_text().split() if device >= 0 else ())
        return short, any(listed)
    return SHORT_KEYS[-1], False


def multiprocessors(device: int) -> int:
    """Of an H200, if the device is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else 132


def _block(d: int, e: int, dtype: torch.dtype, laden: bool, biased: bool, newer: bool) -> tuple[int, int]:
    """The numbers of queries and keys of a block: of the sizes tried, the largest that fits into registers.

    laden: there are alphas, scales, slopes, a bias or a mask. newer: products of float32 take four warps of sm_90 or newer.
    """
    wide, single = max(d, e), dtype == torch.float32
    size = (32 if single and (wide > 64 or laden or not newer) else 64) // (2 if wide > 128 else 1)
    if single and biased and 96 < wide <= 128:  # for the gradient of the bias
        return size // 2, size
    if single and wide > 128 and newer and not laden:  # with 16 keys, Triton 3.6 spills 520 bytes
        return size, 2 * size
    fewer_keys = 64 < wide <= 128 if single else laden and wide <= 128
    return size, size // 2 if fewer_keys else size


def _short(m: int, d: int, e: int, dtype: torch.dtype) -> tuple[int, int] | None:
    """`_block` for ``short_kernels``; None if the registers do not hold m keys with d and e channels."""
    keys = next(x for x in SHORT_KEYS if m <= x)
    if max(d, e) > 128 or keys * _whole(d, e) > _LARGEST[dtype]:
        return None
    return 16 if keys > 64 and dtype == torch.float32 else 32, keys


_prepared: set[tuple[int, int]] = set()  # the kinds of calls whose gradients' kernels are compiled


def _each(block: tuple[int, int], alpha: float) -> int:
    """The memory of a program of ``list_kernels``, in numbers of 4 bytes."""
    return 2 * block[0] * (PLACES[alpha != 2] + 1)


def _programs(
    total: int, m: int, block: tuple[int, int], nbytes: int, dtype: torch.dtype, device: int, alpha: float, powers: bool,
    listed: bool | None,
) -> int:  # fmt: skip
    """The number of programs of ``list_kernels`` for ``total`` blocks of queries, 0 if they are not taken.

    Lists take at most a quarter of the memory of q, k and v (nbytes). If that leaves a multiprocessor without a program, they are not taken.
    """
    usual = dtype != torch.float32 and (powers or alpha >= _LEAST) and measured(device)[1]
    if m < LONG or block[1] < 32 or not (usual if listed is None else listed):
        return 0
    units = multiprocessors(device)
    programs = min(total, 4 * units, nbytes // (16 * _each(block, alpha)) if listed is None else total)
    return 0 if programs < min(total, units) else programs


def _with_lists(start: rows.Starter, dtype: torch.dtype, alpha: float) -> tuple[rows.Starter, rows.Starter]:
    """What starts ``list_kernels`` in the place of a forward kernel, and that kernel for what they leave."""
    from .list_kernels import attend_listed

    own, half, many = start.constants, dtype != torch.float32, alpha != 2
    limits = {"num_warps": 4 if half else 8, "maxnreg": 128 if half and own["WIDE"] <= 64 else 255}
    listed = {x: y for x, y in own.items() if x != "MARKED"} | limits | {"PLACES": PLACES[many], "SLOWER": 1 + many}
    rest = own | {"MARKED": True}
    if own["WIDE"] > 64:
        rest["num_warps"] = 8  # with 4, Triton 3.9 spills 560 bytes on sm_80
    return rows.starter(attend_listed, **listed), rows.starter(start.kernel, **rest)


_RULES = {2.0: "SPARSEMAX", 1.5: "ENTMAX15"}
NONE: tuple[Any, ...] = (None,) * len(FORMS), None, None, None
_NO_STEPS = (1, 1, 0, 0, 0, 0, 0)  # of a bias that is not given


@functools.lru_cache(1024)
def _steps(sizes: tuple[int, ...], strides: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...] | None:
    """size1, size2, s0, s1, s2, row and key of a bias, see ``attention_kernels``; None if its heads need more than three steps."""
    extra = len(lead) + 2 - len(sizes)
    *own, row, last = (1,) * extra + tuple(sizes)
    *steps, by, key = (0,) * extra + strides
    found = rows._layout((*own, last), (*steps, key), (*lead, last))
    return found and (*found[:-1], by if row > 1 else 0, found[-1])


def spread(has: tuple[torch.dtype | None, ...], first: int, q: int) -> tuple[int, ...]:
    """Which of a kernel's tensors each form is, if those that are given begin with the ``first``; others are ``q`` or, for lengths, -1."""
    return tuple(
        first + sum(x is not None for x in has[:i]) if has[i] is not None else q if i else -1 for i in range(len(has))
    )


class Kind:
    """What calls share whose sizes, dtypes, numbers and forms are the same: all that need not be found out again.

    limits: `SHORT` and `LISTED`. has: the dtypes of the `FORMS`, None for one that is not given. lengths and spans: how many there are.
    layout: the shape and the strides of the bias.
    """

    __slots__ = (
        "along", "alpha", "block", "constants", "copies", "ends", "few", "forward", "has", "heads_queries", "lead", "learned",
        "listed", "lists", "numbers", "of_keys", "of_queries", "parts", "ready", "scale", "shape", "short", "state",
    )  # fmt: skip

    def __init__(
        self, a: torch.Size, b: torch.Size, c: torch.Size, room: int, dtype: torch.dtype, device: int, save: bool, limits: tuple[int, bool | None],
        lead: tuple[int, ...], alpha: float, scale: float, causal: bool, has: tuple[torch.dtype | None, ...], lengths: int | None,
        spans: int | None, layout: tuple[tuple[int, ...], tuple[int, ...]] | None,
    ):  # fmt: skip
        (heads, n, d), (groups, m, e) = ((x[:-2].numel(), *y[-2:]) for x, y in ((a, a), (b, c)))
        most = min(limits[0], measured(device)[0])
        powers, scales, slopes, sinks = learned = [x is not None for x in has[3:]]
        biased = 0 if layout is None else 2 if has[2] == torch.uint8 else 1
        block = None
        if heads and 0 < m <= most and 0 < n <= most and not (biased == 1 or any(learned)):
            block = _short(m, d, e, dtype)
        self.short = block is not None
        self.few = (
            not (self.short or save or powers) and 0 < m < rows._LONGEST and heads * n <= _DECODED[dtype] * groups
        )
        sizes = () if layout is None else layout[0]
        # a mask of keys, the same for all queries
        self.ends = biased == 2 and not self.short and sizes[-1] == m and sizes[-2:-1] in ((), (1,))
        if self.ends:
            has, lengths = (torch.int64, *has[1:]), heads
        steps = _NO_STEPS if layout is None else _steps(*layout, lead)
        self.copies = steps is None and not self.few
        if layout is not None and steps is None:  # of the copy
            *_, row, last = layout[0]
            steps = 1, 1, row * last, 0, 0, last if row > 1 else 0, 1 if last > 1 else 0
        sees = (1 if causal else 0) + (2 * (heads // lengths) if lengths else 0)
        # `sees` is an argument, not a constant, so that one kernel is compiled for causal attention, padding, both and neither.
        # The factor of the scores is (alpha - 1) scale; where each head has its own r, it divides the factor.
        factors = (scale, 0.0) if powers else (scale * (alpha - 1), 1 / (alpha - 1))
        repeat = heads // max(groups, 1)
        per_head = 2 * n if spans is not None and spans > 1 else 0
        self.numbers = n, m, d, e, repeat, room, sees, per_head, *steps, *factors  # type: ignore[misc]
        self.lead, self.has, self.learned, self.heads_queries = lead, has, any(learned), (heads, n)
        self.alpha, self.scale = alpha, scale
        if self.few:
            return
        laden = bool(biased) or powers or scales or slopes
        newer = dtype == torch.float32 and rows.capability(device) >= (9, 0)
        self.block = block = block or _block(d, e, dtype, laden, biased == 1, newer)
        blocks, key_blocks = -(-n // block[0]), -(-m // block[1])
        places = heads * blocks * key_blocks  # in a list of blocks, and the number of their flags
        self.state = 2 * heads * n if self.short else heads * n * (e + 2 if save else 2) + places + -(-places // 4)
        self.along, self.shape = heads * n + places, None if d == e else (*a[:-1], e)
        self.parts = repeat if groups * key_blocks < FEW else 1
        rule = "EACH" if powers else _RULES.get(alpha, "ANY")
        of = rule, spans is not None, biased, scales + 2 * slopes + 4 * sinks, block, d, e, dtype
        many = sum(x is not None for x in has)
        (start,) = _of_kind(*of, save, False, self.short)
        order, self.ready, self.lists = (0, 1, 2, *spread(has, 3, 0), 3 + many, 4 + many), False, 0
        nbytes = (a.numel() + b.numel() + c.numel()) * dtype.itemsize
        programs = 0
        if not self.short:
            programs = _programs(heads * blocks, m, block, nbytes, dtype, device, alpha, powers, limits[1])
        if programs:
            self.lists = programs * _each(block, alpha)
            listed, start = _with_lists(start, dtype, alpha)
            self.listed = listed.fixed(programs, (*order, 5 + many), (*self.numbers, heads))
        self.forward = start.fixed(heads * blocks, order, self.numbers)
        if not save:
            return
        *of_queries, of_keys = _of_kind(*of, True, True, self.short)
        self.constants = of_keys.constants
        given, first = (0, 1, 2, 3, *spread(has, 4, 1), 4 + many), 5 + many  # the first that is written
        numbers, programs = (*self.numbers, scale), groups * self.parts * (1 if self.short else key_blocks)
        self.of_keys = of_keys.fixed(programs, (*given, first, first + 1, first + 2), (*numbers, self.parts))
        if of_queries:
            self.constants = of_queries[0].constants
            written = first, first + 1, first + 2 if self.learned else first
            self.of_queries = of_queries[0].fixed(heads * blocks, (*given, *written), numbers)

    def unprepared(self, device: int) -> bool:
        """True once for all kinds that share kernels: those of the gradients are to be compiled beside the forward's."""
        if self.ready:
            return False
        self.ready = True
        many = len(_prepared)
        _prepared.add((id(self.constants), device))
        return len(_prepared) > many


kind = functools.lru_cache(4096)(Kind)


@functools.lru_cache(1024)
def _of_kind(
    rule: str, spans: bool, bias: int, forms: int, block: tuple[int, int], d: int, e: int, dtype: torch.dtype, save: bool, backward: bool, small: bool,
) -> tuple[rows.Starter, ...]:  # fmt: skip
    from . import attention_blocks, attention_kernels, short_kernels

    shared = {"RULE": getattr(attention_blocks, rule).value, "SPANS": spans, "BIAS": bias, "FORMS": forms}
    shared |= {"ROWS": block[0], "KEYS": block[1], "WIDE": _whole(d, e)}
    single = dtype == torch.float32
    if small:
        many = backward and block[1] > 64  # with 4 warps, Triton 3.6 spills 824 bytes
        shared |= {"num_warps": 8 if many or block[1] * max(d, e) > (2048 if single else 4096) else 4, "num_stages": 1}
        return (rows.starter(short_kernels.short_backward if backward else short_kernels.short_forward, **shared),)
    shared["num_warps"] = 8 if single or bias or rule == "EACH" or max(d, e) > 128 else 4
    if not backward:
        return (rows.starter(attention_kernels.attend_forward, SAVE=save, MARKED=False, **shared, num_stages=3),)
    shared["num_stages"] = 1 if single else 2  # more than that spills registers
    split = 1 + (single and block[0] == 64)  # the same
    of_keys = rows.starter(attention_kernels.attend_keys_backward, **shared, SPLIT=split)
    return rows.starter(attention_kernels.attend_queries_backward, **shared), of_keys


@functools.lru_cache(1024)
def of_few(size: int, keys: int, d: int, e: int, single: bool, spans: bool, forms: int) -> list[rows.Starter]:
    """What starts `decode_scores` and `decode_values` for the queries of a group."""
    from . import short_kernels as few

    warps = 8 if single or max(d, e) > 128 else 4
    both = {"ROWS": max(16, 1 << (size - 1).bit_length()), "KEYS": keys, "WIDE": _whole(d, e), "num_warps": warps}
    return [rows.starter(few.decode_scores, SPANS=spans, FORMS=forms, **both), rows.starter(few.decode_values, **both)]


def _whole(d: int, e: int) -> int:
    """The channels of all blocks of a kernel: one power of two.

    On an H200 (Triton 3.6), kernels in float32 whose blocks differed, by 16 and 32 channels or 32 and 16 more, gave wrong values.
    A likely cause: Triton 3.6 and 3.7 fail there with some kernels of several products (triton-lang/triton, 10486 and 11366).
    """
    return max(16, 1 << (max(d, e) - 1).bit_length())
