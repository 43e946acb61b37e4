"""Sparse attention on the GPU: a forward kernel, a backward kernel for queries, and a backward kernel for keys, values.

The mapping is entmax with alpha = 1 + 1/r. With x = (alpha - 1) scale q k' and top = max x, p = (x - top - tau)_+^r,
where tau in [-1, 0) is such that sum p = 1. RULE says which r: SPARSEMAX (r = 1), ENTMAX15 (r = 2), ANY (the argument
r) or EACH (each head has its own, in memory). Scores are computed block by block whenever they are needed and never stored.
AdaSplash (arXiv 2502.12082) found that a block-sparse gradient is worthwhile on GPUs; the root finder here is a
different one.

The first pass sees every visible block of keys once. For each query and each of the KEYS columns of a block, it keeps the
LAYERS largest scores that any block had in that column, and per query the largest one that was dropped. Kept scores are
candidates for the support: Newton's method finds their threshold without another look at the keys. If no dropped score
exceeds it, it is the threshold of all keys. Otherwise, it is a lower bound, and Newton's method goes on over the blocks
that may have support. The r-norm of (x - top - tau)_+ is convex in tau, so tau increases to the root and never passes
it, and a block whose scores are all below the threshold stays below it. The last pass multiplies weights and values.

A row that sees no key has top = +inf; a row with NaN or +inf among its scores has top = NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_blocks import (
    EACH,
    PART,
    SIZES,
    WHOLE,
    block_of,
    excess,
    keys_of,
    largest_of,
    live_blocks,
    moves,
    newton_step,
    of_head,
    place_of,
    powers,
    scores,
    shown,
    sums,
    visible,
)


@triton.jit(do_not_specialize=SIZES)
def attend_forward(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, out_ptr, mean_ptr, top_ptr, tau_ptr, flags_ptr,
    list_ptr, n, m, d, e, repeat, per_head, row, key, factor, r,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, SAVE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    VALUES: tl.constexpr, CHUNK: tl.constexpr, LAYERS: tl.constexpr, START: tl.constexpr,
):  # fmt: skip
    """Writes out [H, n, e], top and tau [H, n], and flags int8 [H, query blocks, key blocks].

    A flag is PART or WHOLE if its pair of blocks has support; the flags must be zeros before the call. If SAVE, it also writes mean
    float32 [H, n, e], the mean of v weighted by s = p^(2 - alpha). The inputs are q [H, n, d], k [H / repeat, m, d] and
    v [H / repeat, m, e]; spans are int64 [1 or H, n, 2] (per_head is the step from one head to the next), and the bias of
    head h begins at ``at[h]`` in memory, with steps row and key. list is int32, of the flags' shape. One program handles
    ROWS queries of a head.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks  # with a causal mask, the longest blocks run first
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = block_of(q_ptr, head * n, rows, n, d, WIDTH)
    start, stop, pinned, least, first, end, whole, whole_end = visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = of_head(r_ptr, head, r, factor, RULE)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    flags = flags_ptr + (head * blocks + block) * key_blocks
    live = list_ptr + (head * blocks + block) * key_blocks

    one = tl.full([ROWS, KEYS], -float("inf"), tl.float32)
    two = one
    three = one
    four = one
    top = tl.full([ROWS], -float("inf"), tl.float32)
    lost = top
    low = top
    # Blocks in which something is hidden come first, then whole ones, backwards from the query's own place: where keys are
    # most alike nearby, the bound is soon so high that most blocks need no further look.
    for part in tl.static_range(START, 3 - (BIAS > 0)):
        begin, turns, turned = first, tl.cdiv(whole - first, KEYS), 0
        if part == 1:
            begin, turns = (first if BIAS else whole_end), tl.cdiv(end - (first if BIAS else whole_end), KEYS)
        if part == 2:
            begin, turns = whole, tl.cdiv(whole_end - whole, KEYS)
            turned = tl.minimum(tl.maximum((block * ROWS + m - n - whole) // KEYS, 0), tl.maximum(turns - 1, 0))
        for i in range(0, turns):
            turn = begin + i * KEYS
            if part == 2:
                turn = begin + tl.where(i <= turned, turned - i, turns + turned - i) * KEYS
            j = place_of(turn, first, PINNED)
            columns = j + tl.arange(0, KEYS)
            k = block_of(k_ptr, keys, columns, m, d, WIDTH)
            x = scores(
                q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS, part == 2
            )
            largest = tl.reduce(x, 1, largest_of)
            may = tl.max((~(largest <= low)).to(tl.int32), 0)
            if may == 1:
                after = tl.minimum(one, x)
                one = largest_of(one, x)
                next_ = tl.minimum(two, after)
                two = tl.maximum(two, after)
                after = tl.minimum(three, next_)
                three = tl.maximum(three, next_)
                if LAYERS == 4:
                    next_ = tl.minimum(four, after)
                    four = tl.maximum(four, after)
                    after = next_
                lost = tl.maximum(lost, tl.max(after, 1))
                top = tl.maximum(top, largest)
                slack = 1e-6 * (tl.abs(top) + 1.0)  # larger than the rounding error of the bound
                bound = tl.maximum(low + slack, top - 1.0)
                if i % 8 == 0:  # a higher bound, by a Newton step for the largest candidate of each column
                    above = tl.where(one > bound[:, None], one - bound[:, None], 0.0)
                    upper, lower = powers(above, r, RULE)
                    f = tl.sum(upper, 1)
                    bound += tl.where(f > 1.0, newton_step(f, tl.sum(lower, 1), r, RULE), 0.0)
                low = tl.maximum(low, bound - slack)
            tl.store(flags + j // KEYS, (may * (WHOLE if part == 2 else PART)).to(tl.int8))

    top = tl.reduce(one, 1, largest_of)
    spoilt = (top != top) | (top == float("inf"))
    idle = (top == -float("inf")) | spoilt
    tau = tl.where(idle, -1.0, tl.maximum(low - top, -1.0))
    top = tl.where(idle, float("inf"), top)
    moving = (~idle).to(tl.int32)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        f, h = sums(one, top, tau, r, RULE)
        more, wider = sums(two, top, tau, r, RULE)
        f, h = f + more, h + wider
        more, wider = sums(three, top, tau, r, RULE)
        f, h = f + more, h + wider
        if LAYERS == 4:
            more, wider = sums(four, top, tau, r, RULE)
            f, h = f + more, h + wider
        step = newton_step(f, h, r, RULE)
        on = moves(step, tau, h, size, 4e-6, RULE) & (passes < 60)
        tau = tl.where(moving == 1, tau + step, tau)
        moving = tl.where((moving == 1) & on, 1, 0)
        size = h
        passes += 1

    moving = (((lost - top) - tau > 0) & ~idle).to(tl.int32)
    entire, count = live_blocks(flags, 1, key_blocks, live, CHUNK)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        f = tl.zeros([ROWS], tl.float32)
        h = tl.zeros([ROWS], tl.float32)
        for part in tl.static_range(BIAS > 0, 2):
            for i in range(0 if part == 0 else entire, entire if part == 0 else count):
                columns = tl.load(live + i) * KEYS + tl.arange(0, KEYS)
                k = block_of(k_ptr, keys, columns, m, d, WIDTH)
                x = scores(
                    q,
                    k,
                    rows,
                    columns,
                    n,
                    m,
                    start,
                    stop,
                    pinned,
                    bias_ptr,
                    row,
                    key,
                    factor,
                    r,
                    PINNED,
                    BIAS,
                    part == 0,
                )
                more, wider = sums(x, top, tau, r, RULE)
                f, h = f + more, h + wider
        step = newton_step(f, h, r, RULE)
        on = moves(step, tau, h, size, 3e-4, RULE) & (passes < 60)
        tau = tl.where(moving == 1, tau + step, tau)
        moving = tl.where((moving == 1) & on, 1, 0)
        size = h
        passes += 1

    top = tl.where(spoilt, float("nan"), top)
    out = tl.zeros([ROWS, VALUES], tl.float32)
    mean = out
    mass = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(BIAS > 0, 2):
        for i in range(0 if part == 0 else entire, entire if part == 0 else count):
            j = tl.load(live + i)
            columns = j * KEYS + tl.arange(0, KEYS)
            k = block_of(k_ptr, keys, columns, m, d, WIDTH)
            x = scores(
                q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS, part == 0
            )
            p, s = powers(excess(x, top[:, None], tau[:, None]), r, RULE)
            v = shown(keys_of(v_ptr, keys, columns, least, end, e, PINNED, VALUES), x, BIAS)
            out = tl.dot(p.to(v.dtype), v, out, input_precision="ieee")
            if SAVE:
                s = s.to(v.dtype)
                mass += tl.sum(s.to(tl.float32), 1)
                mean = tl.dot(s, v, mean, input_precision="ieee")
            on = tl.max((tl.sum(p, 1) != 0).to(tl.int32), 0)
            tl.store(flags + j, (on * (WHOLE if part == 0 else PART)).to(tl.int8))
    channel = tl.arange(0, VALUES)
    at = (head * n + rows)[:, None] * e + channel[None, :]
    inside = (rows < n)[:, None] & (channel < e)[None, :]
    tl.store(out_ptr + at, tl.where(spoilt[:, None], float("nan"), out), mask=inside)
    if SAVE:
        mean = mean / tl.where(mass == 0, 1.0, mass)[:, None]
        tl.store(mean_ptr + at, tl.where(spoilt[:, None], float("nan"), mean), mask=inside)
    tl.store(top_ptr + head * n + rows, top, mask=rows < n)
    tl.store(tau_ptr + head * n + rows, tau, mask=rows < n)


@triton.jit(do_not_specialize=SIZES)
def attend_queries_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, mean_ptr, top_ptr, tau_ptr, flags_ptr,
    list_ptr, along_ptr, dq_ptr, dbias_ptr, dalpha_ptr, n, m, d, e, repeat, per_head, row, key, factor, r, scale,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """dq = scale (s (g v' - along)) k with s = p^(2 - alpha); along is g times the forward's mean.

    If BIAS is 2, it also writes s (g v' - along) to dbias [H, n, m], which must be zeros before the call.
    With EACH, it also writes dalpha [H, n], the gradient of the head's alpha from each query:
    r^2 sum (g v' - along) p (1 - log d) with d = x - top - tau, since p = d^r and tau moves so that the sum of p stays 1.
    Also writes along [H, n], which the kernel for the keys needs.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * m
    rows = block * ROWS + tl.arange(0, ROWS)
    q = block_of(q_ptr, head * n, rows, n, d, WIDTH)
    g = block_of(g_ptr, head * n, rows, n, e, VALUES)
    along = tl.sum(block_of(mean_ptr, head * n, rows, n, e, VALUES) * g.to(tl.float32), 1)
    tl.store(along_ptr + head * n + rows, along, mask=rows < n)
    top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
    tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
    start, stop, pinned, least, _, end, _, _ = visible(
        lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
    )
    r, factor = of_head(r_ptr, head, r, factor, RULE)
    if BIAS:
        bias_ptr += tl.load(at_ptr + head)
    live = list_ptr + (head * blocks + block) * key_blocks
    entire, count = live_blocks(flags_ptr + (head * blocks + block) * key_blocks, 1, key_blocks, live, CHUNK)

    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    dalpha = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(BIAS > 0, 2):
        for i in range(0 if part == 0 else entire, entire if part == 0 else count):
            columns = tl.load(live + i) * KEYS + tl.arange(0, KEYS)
            k = keys_of(k_ptr, keys, columns, least, end, d, PINNED, WIDTH)
            v = keys_of(v_ptr, keys, columns, least, end, e, PINNED, VALUES)
            x = scores(
                q, k, rows, columns, n, m, start, stop, pinned, bias_ptr, row, key, factor, r, PINNED, BIAS, part == 0
            )
            above = excess(x, top[:, None], tau[:, None])
            p, s = powers(above, r, RULE)
            apart = tl.dot(g, tl.trans(shown(v, x, BIAS)), input_precision="ieee") - along[:, None]
            ds = s * apart
            dq = tl.dot(ds.to(k.dtype), shown(k, x, BIAS), dq, input_precision="ieee")
            if RULE == EACH:
                dalpha += tl.sum(apart * p * (1.0 - tl.log(tl.where(above > 0, above, 1.0))), 1)
            if BIAS == 2:
                at = (head * n + rows)[:, None] * m + columns[None, :]
                tl.store(dbias_ptr + at, ds, mask=(rows < n)[:, None] & (columns < m)[None, :])
    if RULE == EACH:
        tl.store(dalpha_ptr + head * n + rows, r * r * dalpha, mask=rows < n)
    channel = tl.arange(0, WIDTH)
    at = (head * n + rows)[:, None] * d + channel[None, :]
    dq = tl.where((top != top)[:, None], float("nan"), dq * scale)
    tl.store(dq_ptr + at, dq, mask=(rows < n)[:, None] & (channel < d)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "parts"])
def attend_keys_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, at_ptr, r_ptr, top_ptr, tau_ptr, flags_ptr, list_ptr,
    along_ptr, dk_ptr, dv_ptr, n, m, d, e, repeat, per_head, row, key, factor, r, scale, parts,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SPANS: tl.constexpr, PINNED: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """dk [parts G, m, d] and dv [parts G, m, e] for KEYS keys and repeat / parts heads of a group.

    The program adds up the query blocks with support, one head after another, so the order of the sums is always the
    same. list is int32 [H, key blocks, query blocks].
    """
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    key_block = program % key_blocks
    part = (program // key_blocks).to(tl.int64)
    group = part // parts
    heads = repeat // parts
    columns = key_block * KEYS + tl.arange(0, KEYS)
    k = block_of(k_ptr, group * m, columns, m, d, WIDTH)
    v = block_of(v_ptr, group * m, columns, m, e, VALUES)
    blocks = tl.cdiv(n, ROWS)
    dk = tl.zeros([KEYS, WIDTH], tl.float32)
    dv = tl.zeros([KEYS, VALUES], tl.float32)
    live = list_ptr + (part * key_blocks + key_block) * heads * blocks
    # The flags of a group's heads lie one after another
    entire, count = live_blocks(
        flags_ptr + part * heads * blocks * key_blocks + key_block, key_blocks, heads * blocks, live, CHUNK
    )
    for section in tl.static_range(BIAS > 0, 2):
        for i in range(0 if section == 0 else entire, entire if section == 0 else count):
            turn = tl.load(live + i)
            head = part * heads + turn // blocks
            rows = turn % blocks * ROWS + tl.arange(0, ROWS)
            start, stop, pinned, _, _, _, _, _ = visible(
                lengths_ptr, spans_ptr, head, rows, n, m, per_head, CAUSAL, LENGTHS, SPANS, PINNED, KEYS
            )
            own, weight = of_head(r_ptr, head, r, factor, RULE)
            bias = bias_ptr
            if BIAS:
                bias += tl.load(at_ptr + head)
            q = block_of(q_ptr, head * n, rows, n, d, WIDTH)
            g = block_of(g_ptr, head * n, rows, n, e, VALUES)
            top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
            tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
            along = tl.load(along_ptr + head * n + rows, mask=rows < n, other=0.0)
            x = scores(
                q, k, rows, columns, n, m, start, stop, pinned, bias, row, key, weight, own, PINNED, BIAS, section == 0
            )
            p, s = powers(excess(x, top[:, None], tau[:, None]), own, RULE)
            ds = s * (tl.dot(g, tl.trans(v), input_precision="ieee") - along[:, None])
            if section == 1:  # a hidden value may be NaN
                ds = tl.where(s == 0, 0.0, ds)
            dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision="ieee")
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    channel, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    start = (part * m + columns)[:, None]
    inside = (columns < m)[:, None]
    tl.store(dk_ptr + start * d + channel[None, :], dk * scale, mask=inside & (channel < d)[None, :])
    tl.store(dv_ptr + start * e + value[None, :], dv, mask=inside & (value < e)[None, :])
