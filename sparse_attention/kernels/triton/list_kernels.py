"""Attention of many keys: each key is scored once, and scores that may get weight are kept in a list.

The mathematics, arguments and helpers are those of ``attention_kernels``, and the backward reads what this kernel writes as if
`attend_forward` had written it. Each query has a list in memory. A score is appended if it exceeds ``low``, a lower bound of the
threshold of the keys seen so far. More keys only raise the threshold, so the list holds the whole support, and a Newton step over
the list is one over all keys seen. Such a step raises the bound after 1, 2, 4, 8, ... blocks of keys (more often if alpha < 2), and
scores that are no longer above it are removed. At the end, only the values of keys with weight are read.

A block of queries with a full list, or with NaN or +inf among its scores, is marked, and `attend_forward` computes it afterwards.

A list of PLACES places has CLASSES parts. Columns 2 c, 2 c + 1, 2 c + 8, 2 c + 9, ... of a block of keys belong to part c, since
tensor cores leave their scores to one thread, which can then append without asking others. A list alternates between CLASSES
scores, one of each part, and their keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import attention_blocks as tile
from .attention_blocks import SIZES

CLASSES, DEEP = tl.constexpr(4), tl.constexpr(8)  # DEEP: places of a part that are read at once
# Append those of the eight scores $1 to $8 that exceed the bound $9 to a part: $10 were appended at the address $11 before, of $13 that
# fit; $12 is the key of $1. The result $0 counts all of them. All threads of a warp branch together, since most have none.
APPEND = "{ .reg .pred p, q; .reg .b64 x; .reg .b32 i; mov.b32 $0, $10;"
APPEND += " ".join(f"setp.gtu{'.or' if i else ''}.f32 p, ${1 + i}, $9{', p' if i else ''};" for i in range(8))
APPEND += " vote.sync.any.pred q, p, -1; @!q bra.uni NONE;"
for i in range(8):
    APPEND += f" setp.gtu.f32 p, ${1 + i}, $9; vote.sync.any.pred q, p, -1; @!q bra.uni NEXT{i};"
    APPEND += f" setp.lt.and.u32 q, $0, $13, p; mad.wide.u32 x, $0, 32, $11; add.u32 i, $12, {i // 2 * 8 + i % 2};"
    APPEND += f" @q st.global.f32 [x], ${1 + i}; @q st.global.b32 [x + 16], i; @p add.u32 $0, $0, 1; NEXT{i}:"
APPEND = tl.constexpr(APPEND + " NONE: }")
OPERANDS = tl.constexpr(",".join(["=&r", *["f"] * 9, *"rlrr"]))


@triton.jit
def keys_of(at):
    """Where the keys are whose scores are at these addresses."""
    return (at + CLASSES).to(tl.pointer_type(tl.int32))


@triton.jit
def below(x):
    """x less the rounding error of a bound."""
    return x - 1e-6 * (tl.abs(x) + 1.0)


@triton.jit
def halves(x):
    """The two halves of x [ROWS, SIZE, ...] along its second dimension."""
    if len(x.shape) == 2:
        return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), [0, 2, 1]))
    elif x.shape[1] == 2:
        return tl.split(tl.permute(x, [0, 2, 1]))
    else:
        return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2, CLASSES]), [0, 2, 3, 1]))


@triton.jit
def columns_of(x):
    """x [ROWS, KEYS] as a tuple: the first columns of all parts [ROWS, CLASSES], their second ones, and so on."""
    if x.shape[1] > 32:
        left, right = halves(x)
        return columns_of(left) + columns_of(right)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 4, CLASSES, 2]))
        a, b = halves(even)
        c, d = halves(odd)
        a, b, c, d = halves(a), halves(b), halves(c), halves(d)
        return a[0], c[0], a[1], c[1], b[0], d[0], b[1], d[1]


@triton.jit
def appended(x, low, counts, to, room, first, KEYS: tl.constexpr):
    """Append the scores x (see `columns_of`) above low [ROWS, 1] of KEYS keys from ``first`` on; returns the new counts [ROWS, CLASSES].

    counts [ROWS, CLASSES] were appended at the addresses ``to`` before, and ``room`` fit. Beyond that, scores are only counted.
    """
    for i in tl.static_range(0, KEYS // 4, 8):
        key = first + 4 * i + 2 * tl.arange(0, CLASSES)[None, :]
        if tile.INTERPRETED:
            for j in tl.static_range(8):
                on = ~(x[i + j] <= low)
                at = to + counts * (2 * CLASSES)
                tl.store(at, x[i + j], mask=on & (counts < room))
                tl.store(keys_of(at), key + j // 2 * 8 + j % 2, mask=on & (counts < room))
                counts += on.to(tl.int32)
        else:
            eight = x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5], x[i + 6], x[i + 7]
            given = low, counts, to.to(tl.int64), key, room
            counts = tl.inline_asm_elementwise(APPEND, OPERANDS, eight + given, tl.int32, False, 1)
    return counts


@triton.jit
def listed(lists, i, counts, PLACES: tl.constexpr):
    """DEEP scores of each part of lists from place i on [ROWS, DEEP CLASSES], -inf where there are no more; their addresses; which exist."""
    ROWS: tl.constexpr = counts.shape[0]
    place = i + tl.arange(0, DEEP)[None, :, None]
    at = tl.arange(0, ROWS)[:, None, None] * (2 * PLACES) + place * (2 * CLASSES) + tl.arange(0, CLASSES)[None, None, :]
    there = tl.reshape(place < counts[:, None, :], [ROWS, DEEP * CLASSES])
    at = lists + tl.reshape(at, [ROWS, DEEP * CLASSES])
    return tl.load(at, mask=there, other=-float("inf")), at, there


@triton.jit
def largest_on(lists, counts, sink, PLACES: tl.constexpr):
    """The largest score on lists, or the sink; NaN if one is NaN."""
    x = tl.full([counts.shape[0], DEEP * CLASSES], -float("inf"), tl.float32)
    for i in range(0, tl.max(counts), DEEP):
        x = tile.largest_of(x, listed(lists, i, counts, PLACES)[0])
    return tile.largest_of(sink, tl.reduce(x, 1, tile.largest_of))


@triton.jit
def sums(lists, counts, top, tau, sink, r, PLACES: tl.constexpr, RULE: tl.constexpr, FORMS: tl.constexpr):
    """`tile.sums` of the scores on lists, and of the sink."""
    f = tl.zeros([counts.shape[0], DEEP * CLASSES], tl.float32)
    h = f
    for i in range(0, tl.max(counts), DEEP):
        x = listed(lists, i, counts, PLACES)[0]
        upper, lower = tile.powers(tile.excess(x, top[:, None], tau[:, None]), r, RULE)
        f, h = f + upper, h + lower
    f, h = tl.sum(f, 1), tl.sum(h, 1)
    if tile.SINK & FORMS:
        upper, lower = tile.powers(tile.excess(sink, top, tau), r, RULE)
        f, h = f + upper, h + lower
    return f, h


@triton.jit
def packed(lists, counts, top, tau, PLACES: tl.constexpr):
    """Remove the scores at or below top + tau from lists; returns how many each has left."""
    size = tl.zeros([counts.shape[0]], tl.int32)
    for i in range(0, tl.max(counts), DEEP):
        x, at, there = listed(lists, i, counts, PLACES)
        key = tl.load(keys_of(at), mask=there, other=0)
        on = (there & ~(tile.excess(x, top[:, None], tau[:, None]) <= 0)).to(tl.int32)
        place = size[:, None] + tl.cumsum(on, 1) - on
        to = lists + tl.arange(0, counts.shape[0])[:, None] * (2 * PLACES) + place + place // CLASSES * CLASSES
        tl.debug_barrier()  # places behind those read so far are never written
        tl.store(to, x, mask=on == 1)
        tl.store(keys_of(to), key, mask=on == 1)
        size += tl.sum(on, 1)
    return size


@triton.jit
def shares(size):
    """The counts of the parts of lists of these sizes without gaps."""
    return (size[:, None] + CLASSES - 1 - tl.arange(0, CLASSES)[None, :]) // CLASSES


@triton.jit(do_not_specialize=[*SIZES, "heads"])
def attend_listed(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr, out_ptr, state_ptr,
    lists_ptr, n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r, heads,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr, SAVE: tl.constexpr, PLACES: tl.constexpr, SLOWER: tl.constexpr,
):  # fmt: skip
    """What `attend_forward` writes. A program handles one block of queries after another, the longest first.

    lists: for each program, ROWS lists, then the bounds float32 [ROWS] and the numbers of scores int32 [ROWS] of these lists.
    SLOWER: blocks are seen until there are 1 / SLOWER as many more; then the bounds rise.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    lists = lists_ptr + tl.program_id(0).to(tl.int64) * (2 * ROWS * (PLACES + 1))
    lows = lists + 2 * ROWS * PLACES + tl.arange(0, ROWS)
    sizes = (lows + ROWS).to(tl.pointer_type(tl.int32))
    ends = lists + tl.arange(0, ROWS)[:, None] * (2 * PLACES) + tl.arange(0, CLASSES)[None, :]
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    state = tile.parts_of(state_ptr, heads, n, e, blocks, key_blocks, SAVE)
    for turn in range(tl.program_id(0), heads * blocks, tl.num_programs(0)):
        block = blocks - 1 - turn // heads
        head = (turn % heads).to(tl.int64)
        keys = head // repeat * room
        rows = block * ROWS + tl.arange(0, ROWS)
        q = tile.rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
        seen, weights = tile.head_of(inputs, head, rows, n, m, form)[:2]
        bounds = tile.blocks_seen(seen, m, KEYS)
        power = weights[5]
        sink = tl.full([ROWS], -float("inf"), tl.float32)
        if tile.SINK & FORMS:
            sink = tl.load(sinks_ptr + head) / power + tl.zeros([ROWS], tl.float32)
        zero = tl.zeros([ROWS], tl.float32)
        tl.store(lows, zero - float("inf"))
        tl.store(sizes, tl.zeros([ROWS], tl.int32))
        flags = state[3] + (head * blocks + block) * key_blocks
        tile.clear(flags, key_blocks)
        total = tl.cdiv(bounds[1], KEYS) - bounds[0] // KEYS
        now, full = 0, 0
        while (now < total) & (full == 0):
            stop = now + tl.maximum(now // SLOWER, 1)
            passed = 0
            low = tl.load(lows)  # from memory, so that their layout is that of the scores
            held = shares(tl.load(sizes))
            to = ends + held * (2 * CLASSES)
            left = PLACES // CLASSES - held
            counts = tl.zeros([ROWS, CLASSES], tl.int32)
            for part in tl.static_range(1 - (SPANS & (BIAS == 0)), 3 - (BIAS > 0)):
                begin, turns, turned = tile.run_of(bounds, block * ROWS + m - n, BIAS, part, KEYS)
                for i in range(tl.maximum(now - passed, 0), tl.minimum(stop - passed, turns)):
                    j = tile.block_at(i, begin, turns, turned, part, KEYS)
                    columns = j + tl.arange(0, KEYS)
                    k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
                    x = columns_of(tile.scores(q, k, rows, columns, n, m, seen, weights, part == 2, form))
                    counts = appended(x, low[:, None], counts, to, left, j, KEYS)
                passed += turns
            now = stop
            tl.debug_barrier()
            full = tl.max((counts > left).to(tl.int32))
            counts = tl.where(full == 1, 0, held + counts)
            low = tl.maximum(low, below(largest_on(lists, counts, sink, PLACES) - 1.0))
            f, h = sums(lists, counts, low, zero, sink, power, PLACES, RULE, FORMS)
            low = tl.maximum(low, below(low + tl.where(f > 1.0, tile.newton_step(f, h, power, RULE), 0.0)))
            tl.store(lows, low)
            tl.store(sizes, packed(lists, counts, low, zero, PLACES))
            tl.debug_barrier()

        low = tl.load(lows)
        counts = shares(tl.load(sizes))
        top = largest_on(lists, counts, sink, PLACES)
        spoilt = (top != top) | (top == float("inf"))
        full = tl.maximum(full, tl.max(spoilt.to(tl.int32)))
        idle = (top == -float("inf")) | spoilt
        tau = tl.where(idle, -1.0, tl.maximum(low - top, -1.0))
        top = tl.where(idle, float("inf"), top)
        moving = (~idle).to(tl.int32)
        before = tl.zeros([ROWS], tl.float32)
        passes = 0
        while tl.max(moving) == 1:
            f, h = sums(lists, counts, top, tau, sink, power, PLACES, RULE, FORMS)
            tau, moving = tile.stepped(f, h, tau, moving, before, passes, power, 4e-6, RULE)
            before = h
            passes += 1
        size = packed(lists, counts, top, tau, PLACES)
        tl.debug_barrier()

        for i in range(0, tl.cdiv(tl.max(size), CLASSES), DEEP):
            x, at, there = listed(lists, i, shares(size), PLACES)
            number = tl.load(keys_of(at), mask=there, other=0)
            flag = tl.where((number >= bounds[2]) & (number < tl.where(BIAS > 0, 0, bounds[3])), tile.WHOLE, tile.PART)
            tl.store(flags + number // KEYS, flag.to(tl.int8), mask=there)
        out = tl.zeros([ROWS, WIDE], tl.float32)
        mean = tl.zeros([ROWS, WIDE], tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
        if tile.SINK & FORMS:
            mass = tile.powers(tile.excess(sink, top, tau), power, RULE)[1]
        for i in range(0, tl.max(size)):
            at = lists + tl.arange(0, ROWS) * (2 * PLACES) + i + i // CLASSES * CLASSES
            score = tl.load(at, mask=i < size, other=-float("inf"))
            p, s = tile.powers(tile.excess(score, top, tau), power, RULE)
            number = tl.load(keys_of(at), mask=i < size, other=-1)
            v = tile.rows_of(v_ptr, keys, number, 0, m, e, WIDE).to(tl.float32)
            out += p[:, None] * v
            if SAVE:
                mean += s[:, None] * v
                mass += s
        tile.store_rows(out_ptr, head * n, rows, n, e, out, WIDE)
        if SAVE:
            share = (1.0 / tl.where(mass == 0, 1.0, mass))[:, None]
            tile.store_rows(state_ptr, head * n, rows, n, e, mean * share, WIDE)
        tl.store(state[0] + head * n + rows, top, mask=rows < n)
        tl.store(state[1] + head * n + rows, tl.where(full == 1, tile.FULL, tau), mask=rows < n)
