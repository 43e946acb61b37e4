"""Sparse attention on the GPU: a forward kernel, a backward kernel for queries, and one for keys and values.

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

A sink is a candidate from the beginning, and a key in each pass, with the value 0. A row that sees no key has top = +inf;
a row with NaN or +inf among its scores has top = NaN.

The ``d`` channels of queries and keys and the ``e`` channels of values are blocks of WIDE, a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import attention_blocks as tile
from .attention_blocks import SIZES


@triton.jit(do_not_specialize=SIZES)
def attend_forward(
    q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr, out_ptr, state_ptr,
    n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr, SAVE: tl.constexpr, MARKED: tl.constexpr,
):  # fmt: skip
    """out [H, n, e] from q [H, n, d], k [G, m, d] and v [G, m, e], of which groups are ``room`` rows apart.

        The state, see `tile.parts_of`, gets the thresholds, the flags WHOLE or PART of the blocks in which some p is not 0, and with
        SAVE the mean of v weighted by p^(2 - alpha), which the backward needs.
        sees: 1 if causal, and with lengths, int64, twice the number of heads that share one. spans: int64 [1 or H, n, 2] (per_head is
    the step from one head to the next). The heads of the bias have the shape [., size1, size2] and the steps s0, s1 and s2 in memory, its
    queries and keys row and key. scales: float32 [H, n], slopes and sinks [H], those that FORMS names. MARKED: only for blocks of
    queries that ``list_kernels`` marked. One program handles ROWS queries of a head.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks  # with a causal mask, the longest blocks run first
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * room
    state = tile.parts_of(state_ptr, tl.num_programs(0) // blocks, n, e, blocks, key_blocks, SAVE)
    top_ptr, tau_ptr, list_ptr, flags_ptr = state
    mark = tl.load(tau_ptr + head * n + block * ROWS) if MARKED else tile.FULL
    if mark != tile.FULL:
        return
    rows = block * ROWS + tl.arange(0, ROWS)
    q = tile.rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    seen, weights, _ = tile.head_of(inputs, head, rows, n, m, form)
    bounds = tile.blocks_seen(seen, m, KEYS)
    r = weights[5]
    flags = flags_ptr + (head * blocks + block) * key_blocks
    live = list_ptr + (head * blocks + block) * key_blocks
    tile.clear(flags, key_blocks)

    LAYERS: tl.constexpr = 4 if RULE == tile.ENTMAX15 else 3
    one = tl.full([ROWS, KEYS], -float("inf"), tl.float32)
    two = one
    three = one
    four = one
    top = tl.full([ROWS], -float("inf"), tl.float32)
    lost = top
    low = top
    if tile.SINK & FORMS:
        sink = tl.load(sinks_ptr + head) / r + tl.zeros([ROWS], tl.float32)
        one = tl.where((tl.arange(0, KEYS) == 0)[None, :], sink[:, None], one)
        top = sink
    for part in tl.static_range(1 - (SPANS & (BIAS == 0)), 3 - (BIAS > 0)):
        begin, turns, turned = tile.run_of(bounds, block * ROWS + m - n, BIAS, part, KEYS)
        for i in range(0, turns):
            j = tile.block_at(i, begin, turns, turned, part, KEYS)
            columns = j + tl.arange(0, KEYS)
            k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
            x = tile.scores(q, k, rows, columns, n, m, seen, weights, part == 2, form)
            largest = tl.reduce(x, 1, tile.largest_of)
            may = tl.max((~(largest <= low)).to(tl.int32), 0)
            if may == 1:
                after = tl.minimum(one, x)
                one = tile.largest_of(one, x)
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
                    upper, lower = tile.powers(above, r, RULE)
                    f = tl.sum(upper, 1)
                    bound += tl.where(f > 1.0, tile.newton_step(f, tl.sum(lower, 1), r, RULE), 0.0)
                low = tl.maximum(low, bound - slack)
            tl.store(flags + j // KEYS, (may * (tile.WHOLE if part == 2 else tile.PART)).to(tl.int8))

    top = tl.reduce(one, 1, tile.largest_of)
    spoilt = (top != top) | (top == float("inf"))
    idle = (top == -float("inf")) | spoilt
    tau = tl.where(idle, -1.0, tl.maximum(low - top, -1.0))
    top = tl.where(idle, float("inf"), top)
    tau = tile.threshold_of((one, two, three, four), top, tau, idle, r, LAYERS, RULE)

    moving = (((lost - top) - tau > 0) & ~idle).to(tl.int32)
    entire, count = tile.live_blocks(flags, 1, key_blocks, live)
    size = tl.zeros([ROWS], tl.float32)
    passes = 0
    while tl.max(moving, 0) == 1:
        f = tl.zeros([ROWS], tl.float32)
        h = tl.zeros([ROWS], tl.float32)
        if tile.SINK & FORMS:
            f, h = tile.powers(tile.excess(sink, top, tau), r, RULE)
        for part in tl.static_range(BIAS > 0, 2):
            for i in range(0 if part == 0 else entire, entire if part == 0 else count):
                columns = tl.load(live + i) * KEYS + tl.arange(0, KEYS)
                k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
                x = tile.scores(q, k, rows, columns, n, m, seen, weights, part == 0, form)
                more, wider = tile.sums(x, top, tau, r, RULE)
                f, h = f + more, h + wider
        tau, moving = tile.stepped(f, h, tau, moving, size, passes, r, 3e-4, RULE)
        size = h
        passes += 1

    top = tl.where(spoilt, float("nan"), top)
    out = tl.zeros([ROWS, WIDE], tl.float32)
    mean = tl.zeros([ROWS, WIDE], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    if tile.SINK & FORMS:
        _, mass = tile.powers(tile.excess(sink, top, tau), r, RULE)
    for part in tl.static_range(BIAS > 0, 2):
        for i in range(0 if part == 0 else entire, entire if part == 0 else count):
            j = tl.load(live + i)
            columns = j * KEYS + tl.arange(0, KEYS)
            k = tile.rows_of(k_ptr, keys, columns, 0, m, d, WIDE)
            x = tile.scores(q, k, rows, columns, n, m, seen, weights, part == 0, form)
            p, s = tile.powers(tile.excess(x, top[:, None], tau[:, None]), r, RULE)
            v = tile.shown(tile.rows_of(v_ptr, keys, columns, bounds[0], bounds[1], e, WIDE), x, BIAS)
            out = tl.dot(p.to(v.dtype), v, out, input_precision=tile.SINGLE)
            if SAVE:
                s = s.to(v.dtype)
                mass += tl.sum(s.to(tl.float32), 1)
                mean = tl.dot(s, v, mean, input_precision=tile.SINGLE)
            on = tl.max((tl.sum(p, 1) != 0).to(tl.int32), 0)
            tl.store(flags + j, (on * (tile.WHOLE if part == 0 else tile.PART)).to(tl.int8))
    nan = tl.where(spoilt, float("nan"), 0.0)[:, None]
    tile.store_rows(out_ptr, head * n, rows, n, e, out + nan, WIDE)
    if SAVE:
        share = (1.0 / tl.where(mass == 0, 1.0, mass))[:, None]
        tile.store_rows(state_ptr, head * n, rows, n, e, mean * share + nan, WIDE)
    tl.store(top_ptr + head * n + rows, top, mask=rows < n)
    tl.store(tau_ptr + head * n + rows, tau, mask=rows < n)


@triton.jit(do_not_specialize=SIZES)
def attend_queries_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr, state_ptr,
    along_ptr, dq_ptr, dforms_ptr, n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r, scale,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dq = scale (s (g v' - along)) k with s = p^(2 - alpha); along is g times the forward's mean.

    Also writes along [H, n], which the other kernels need (after it lies room for a list of blocks), and dforms [4, H, n]: the gradients of the scale, the slope, the sink
    (those in FORMS) and, with EACH, the alpha of the head, from each query. That of alpha is
    r^2 sum (g v' - along) p (1 - log d) with d = x - top - tau, since p = d^r and tau moves so that the sum of p stays 1.
    """
    blocks = tl.cdiv(n, ROWS)
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    head = (program // blocks).to(tl.int64)
    keys = head // repeat * room
    rows = block * ROWS + tl.arange(0, ROWS)
    q = tile.rows_of(q_ptr, head * n, rows, 0, n, d, WIDE)
    g = tile.rows_of(g_ptr, head * n, rows, 0, n, e, WIDE)
    along = tile.along_rows(tile.rows_of(state_ptr, head * n, rows, 0, n, e, WIDE), g)
    tl.store(along_ptr + head * n + rows, along, mask=rows < n)
    heads = tl.num_programs(0) // blocks
    top_ptr, tau_ptr, _, flags_ptr = tile.parts_of(state_ptr, heads, n, e, blocks, key_blocks, True)
    top = tl.load(top_ptr + head * n + rows, mask=rows < n, other=float("inf"))
    tau = tl.load(tau_ptr + head * n + rows, mask=rows < n, other=-1.0)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    seen, weights, own = tile.head_of(inputs, head, rows, n, m, form)
    least, end, _, _ = tile.blocks_seen(seen, m, KEYS)
    r = weights[5]
    live = tile.after(along_ptr, heads, n) + (head * blocks + block) * key_blocks
    entire, count = tile.live_blocks(flags_ptr + (head * blocks + block) * key_blocks, 1, key_blocks, live)

    dq = tl.zeros([ROWS, WIDE], tl.float32)
    dalpha = tl.zeros([ROWS], tl.float32)
    dslope = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(BIAS > 0, 2):
        for i in range(0 if part == 0 else entire, entire if part == 0 else count):
            columns = tl.load(live + i) * KEYS + tl.arange(0, KEYS)
            k = tile.rows_of(k_ptr, keys, columns, least, end, d, WIDE)
            v = tile.rows_of(v_ptr, keys, columns, least, end, e, WIDE)
            x = tile.scores(q, k, rows, columns, n, m, seen, weights, part == 0, form)
            above = tile.excess(x, top[:, None], tau[:, None])
            p, s = tile.powers(above, r, RULE)
            apart = tile.inner(g, tile.shown(v, x, BIAS)) - along[:, None]
            ds = s * apart
            dq = tl.dot(ds.to(k.dtype), tile.shown(k, x, BIAS), dq, input_precision=tile.SINGLE)
            if RULE == tile.EACH:
                dalpha += tl.sum(apart * p * (1.0 - tl.log(tl.where(above > 0, above, 1.0))), 1)
            if tile.SLOPE & FORMS:
                dslope -= tl.sum(ds * tile.distances(rows, columns, n, m), 1)
    at = dforms_ptr + head * n + rows
    step = heads.to(tl.int64) * n
    if tile.SCALE & FORMS:
        tl.store(at, scale * tile.along_rows(q, dq), mask=rows < n)
    if tile.SLOPE & FORMS:
        tl.store(at + step, dslope, mask=rows < n)
    if tile.SINK & FORMS:
        above = tile.excess(tl.load(sinks_ptr + head) / r, top, tau)
        p, s = tile.powers(above, r, RULE)
        tl.store(at + 2 * step, -along * s, mask=rows < n)
        if RULE == tile.EACH:
            dalpha -= along * p * (1.0 - tl.log(tl.where(above > 0, above, 1.0)))
    if RULE == tile.EACH:
        tl.store(at + 3 * step, r * r * dalpha, mask=rows < n)
    by = (tl.where(top != top, float("nan"), scale) * own)[:, None]
    tile.store_rows(dq_ptr, head * n, rows, n, d, dq * by, WIDE)


@triton.jit(do_not_specialize=[*SIZES, "parts"])
def attend_keys_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr,
    state_ptr, along_ptr, dk_ptr, dv_ptr, n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r, scale, parts,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """dk [parts G, m, d] and dv [parts G, m, e] for KEYS keys and repeat / parts heads of a group.

    The program adds up the query blocks with support, one head after another, so the order of the sums is always the
    same. It takes ROWS / SPLIT queries at once.
    """
    key_blocks = tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    key_block = program % key_blocks
    part = (program // key_blocks).to(tl.int64)
    heads = repeat // parts
    columns = key_block * KEYS + tl.arange(0, KEYS)
    k = tile.rows_of(k_ptr, part // parts * room, columns, 0, m, d, WIDE)
    v = tile.rows_of(v_ptr, part // parts * room, columns, 0, m, e, WIDE)
    blocks = tl.cdiv(n, ROWS)
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    every = tl.num_programs(0) // key_blocks * heads
    top_ptr, tau_ptr, _, flags_ptr = tile.parts_of(state_ptr, every, n, e, blocks, key_blocks, True)
    thresholds = top_ptr, tau_ptr, along_ptr
    sizes = n, m, d, e
    dk = tl.zeros([KEYS, WIDE], tl.float32)
    dv = tl.zeros([KEYS, WIDE], tl.float32)
    live = tile.after(along_ptr, every, n) + (part * key_blocks + key_block) * heads * blocks
    # The flags of a group's heads lie one after another
    entire, count = tile.live_blocks(
        flags_ptr + part * heads * blocks * key_blocks + key_block, key_blocks, heads * blocks, live
    )
    for section in tl.static_range(BIAS > 0, 2):
        for i in range(0 if section == 0 else entire * SPLIT, (entire if section == 0 else count) * SPLIT):
            turn = tl.load(live + i // SPLIT)
            head = part * heads + turn // blocks
            rows = turn % blocks * ROWS + i % SPLIT * (ROWS // SPLIT) + tl.arange(0, ROWS // SPLIT)
            p, ds, own, q, g = tile.gradient_of(
                inputs, thresholds, q_ptr, g_ptr, k, v, (head, rows, columns), sizes, section == 0, form, WIDE
            )
            if tile.SCALE & FORMS:
                ds = ds * own[:, None]
            dv = tl.dot(tl.trans(p.to(g.dtype)), g, dv, input_precision=tile.SINGLE)
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision=tile.SINGLE)
    tile.store_rows(dk_ptr, part * m, columns, m, d, dk * scale, WIDE)
    tile.store_rows(dv_ptr, part * m, columns, m, e, dv, WIDE)


@triton.jit(do_not_specialize=[*SIZES, "shared"])
def attend_bias_backward(
    g_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sinks_ptr,
    state_ptr, heads_ptr, along_ptr, db_ptr, n, m, d, e, repeat, room, sees, per_head, size1, size2, s0, s1, s2, row, key, factor, r, shared,
    RULE: tl.constexpr, SPANS: tl.constexpr, BIAS: tl.constexpr, FORMS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, WIDE: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores, db [matrices, n, m], summed over the heads ``heads_ptr`` [matrices, shared] that share a bias.

    With OVER, it is also summed over the queries: db [matrices, m].
    """
    blocks, key_blocks = tl.cdiv(n, ROWS), tl.cdiv(m, KEYS)
    program = tl.program_id(0)
    columns = program % key_blocks * KEYS + tl.arange(0, KEYS)
    matrix = (program // key_blocks).to(tl.int64)
    own_block = 0 if OVER else program // key_blocks % blocks
    matrix = matrix // (1 if OVER else blocks)
    turns = shared * blocks if OVER else shared
    inputs = lengths_ptr, spans_ptr, bias_ptr, r_ptr, scales_ptr, slopes_ptr, sees, per_head, (size1, size2, s0, s1, s2), row, key, factor, r  # fmt: skip
    form: tl.constexpr = (RULE, SPANS, BIAS, FORMS)
    every = tl.num_programs(0) // (key_blocks if OVER else key_blocks * blocks) * shared
    top_ptr, tau_ptr, _, flags_ptr = tile.parts_of(state_ptr, every, n, e, blocks, key_blocks, True)
    thresholds = top_ptr, tau_ptr, along_ptr
    sizes = n, m, d, e
    total = tl.zeros([ROWS, KEYS], tl.float32)
    for i in range(0, turns):
        head = tl.load(heads_ptr + matrix * shared + i % shared)
        block = i // shared if OVER else own_block
        if tl.load(flags_ptr + (head * blocks + block) * key_blocks + program % key_blocks) != 0:
            k = tile.rows_of(k_ptr, head // repeat * room, columns, 0, m, d, WIDE)
            v = tile.rows_of(v_ptr, head // repeat * room, columns, 0, m, e, WIDE)
            rows = block * ROWS + tl.arange(0, ROWS)
            at = head, rows, columns
            total += tile.gradient_of(inputs, thresholds, q_ptr, g_ptr, k, v, at, sizes, False, form, WIDE)[1]
    if OVER:
        tl.store(db_ptr + matrix * m + columns, tl.sum(total, 0), mask=columns < m)
    else:
        rows = own_block * ROWS + tl.arange(0, ROWS)
        at = (matrix * n + rows)[:, None] * m + columns[None, :]
        tl.store(db_ptr + at, total, mask=(rows < n)[:, None] & (columns < m)[None, :])
