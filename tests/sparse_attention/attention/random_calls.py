"""Random calls of attention, and what they should give."""

import random
from collections.abc import Callable

import torch
from attention_oracles import bisected, distances, formula, named, visible
from torch import Tensor

OTHERS = [("sparsemax", {"gamma": 0.5}), ("sparsegen_lin", {"lam": 0.3}), ("sparsehourglass", {})]
OTHERS += [("fusedmax", {"lam": 0.3, "gamma": 0.5}), ("fusedmax", {"lam": 0.0}), ("softmax", {"gamma": 2.0})]
ALPHAS = [2.0, 1.5, 1.3, 1.05, 1.1, 1.7, 1.95, 2.5, 4.0]


def chosen(seed: int, mapping: str = "entmax") -> dict[str, object]:
    """A random call: its tensors, float32, under the names of the arguments."""
    draw, make = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make)

    heads, groups = draw.choice([(1, 1), (4, 4), (4, 2), (3, 1)])
    B, n, m = draw.choice([1, 2]), draw.choice([1, 9, 33, 64, 100]), draw.choice([3, 40, 97, 130, 200])
    d, e = draw.choice([4, 16, 33, 64]), draw.choice([3, 16, 64])
    if draw.random() < 0.5:
        n = m = max(n, 33)
    call: dict[str, object] = {"q": normal(B, heads, n, d) * draw.choice([0.3, 1.0, 3.0])}
    call |= {"k": normal(B, groups, m, d), "v": normal(B, groups, m, e)}
    maybe = lambda chance: draw.random() < chance  # noqa: E731
    alpha: float | Tensor = draw.choice(ALPHAS)
    if maybe(0.4):
        alpha = 1.1 + 0.85 * torch.rand(draw.choice([(), (heads,), (1, heads, 1, 1), (B, heads, 1, 1)]), generator=make)
        if alpha.numel() == heads > 1 and maybe(0.3):
            alpha.view(-1)[:2] = torch.tensor([2.0, 1.5])
    call["alpha"] = alpha
    call["causal"] = maybe(0.5)
    if maybe(0.3):
        call["lengths"] = torch.randint(0, m + 1, (B,), generator=make)
    if maybe(0.3):
        call["window"] = draw.choice([(5, 2), (m // 2, 0), (None, 3), (0, None)])
    if n == m and maybe(0.2):
        ends = sorted(draw.choices(range(m + 1), k=3))
        call["cu_seqlens"] = torch.tensor([0, *ends, m])
    if maybe(0.3):
        call["slopes"] = torch.rand(heads, generator=make) * 0.3
    if maybe(0.3):
        call["sink"] = normal(heads)
    if maybe(0.3):
        call["bias"] = normal(*draw.choice([(n, m), (heads, 1, m), (B, 1, n, m), (heads, n, m), (n, 1)]))
    if maybe(0.2):
        call["mask"] = torch.rand(draw.choice([(n, m), (B, 1, 1, m), (heads, n, m)]), generator=make) > 0.4
    if maybe(0.3):
        call["scale"] = torch.rand(draw.choice([(heads,), (heads, n, 1), (B, 1, n, 1)]), generator=make) * 0.4 + 0.05
    call["mapping"] = mapping
    if mapping != "entmax":
        del call["alpha"]
    if mapping == "fusedmax":
        call["lam"] = draw.choice([0.01, 0.1, 0.5, 3.0])
    if mapping == "others":
        name, params = draw.choice(OTHERS)
        call |= {"mapping": name, **params}
    if isinstance(alpha := call.get("alpha"), Tensor) and maybe(0.5):  # all shapes of one for each head or entry
        same = {heads: [(heads, 1), (heads, 1, 1)], B: [(B, 1, 1, 1)]}.get(alpha.numel(), [alpha.shape])
        call["alpha"] = alpha.reshape(draw.choice(same))
    if "scale" in call and maybe(0.5):
        scale = call["scale"]
        call["scale"] = scale.view(draw.choice([(heads, 1, 1), (1, heads, 1, 1)])) if scale.ndim == 1 else scale.mean()
    if "bias" in call and maybe(0.4):
        hidden = torch.rand(call["bias"].shape, generator=make) < 0.3
        call["bias"] = call["bias"].masked_fill(hidden, -torch.inf)
    if "sink" in call and maybe(0.3):
        call["sink"][: draw.choice([1, heads])] = -torch.inf  # none
    if "lengths" in call and maybe(0.3):
        call["lengths"] = torch.randint(0, m + 1, (B, heads), generator=make)
    if "cu_seqlens" in call and maybe(0.5):
        call["cu_seqlens"] = call["cu_seqlens"].int()
    if "mask" not in call and maybe(0.2):  # of spans, of padding on the right and on the left
        ends = torch.randint(0, m + 1, (B, 1, 1, 1), generator=make)
        call["mask"] = draw.choice([visible(n, m, 6, 1), torch.arange(m) < ends, torch.arange(m) >= ends])
    call |= {"dropout": 0.35} if maybe(0.1) else {}
    call |= {"need_weights": True} if maybe(0.2) else {}
    if maybe(0.1):
        call = {k: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for k, x in call.items()}
    return call


def on_rows(mapping: str, **params) -> Callable:
    """The mapping of rows by other means than ours, where there are any."""
    if mapping == "softmax":
        x_of = lambda x, keep: (x / params.get("gamma", 1.0)).masked_fill(~keep, -torch.inf)  # noqa: E731
        return lambda x, keep: torch.softmax(x_of(x, keep), -1).nan_to_num(0.0)
    if mapping in ("entmax", "sparsemax", "sparsegen_lin"):
        factor = params.get("gamma", 1.0) * (1 - params.get("lam", 0.0))
        return lambda x, keep: bisected(params.get("alpha", 2.0))(x / factor, keep)
    return named(mapping, **params)


def exact_output(q, k, v, mapping, slopes=None, sink=None, bias=0.0, scale=None, factors=1.0, **params):
    """The output and weights, and which rows keep their support and segments, which decide about gradients, near the scores."""
    (B, H, n, _), m = q.shape, k.shape[-2]
    hides = {name: params.pop(name, None) for name in ("causal", "lengths", "cu_seqlens", "window", "mask")}
    keep = visible(n, m, *hides["window"] or (None, None), hides["causal"], hides["lengths"], hides["cu_seqlens"])
    keep = (keep if hides["mask"] is None else keep & hides["mask"]).expand(B, H, n, m)
    if isinstance(bias, Tensor):
        keep, bias = keep & (bias > -torch.inf), bias.masked_fill(bias == -torch.inf, 0.0)
    added = bias if slopes is None else bias - slopes.view(H, 1, 1) * distances(n, m).abs()
    heads = [name for name, x in params.items() if isinstance(x, Tensor) and x.ndim < 4 and x.numel() == H]
    params |= {name: params[name].view(1, H, 1, 1) for name in heads}
    steady = []

    def mapped(x: Tensor, keep: Tensor) -> Tensor:
        p = on_rows(mapping, **params)(x, keep)
        if not torch.is_grad_enabled():
            return p
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        noise *= 3e-3 if torch.as_tensor(params.get("alpha", 2.0)).max() > 2 else 3e-4
        with torch.no_grad():
            near = [p, *(named(mapping, **params)(x + move, keep) for move in (-noise, noise))]
        shape = [torch.cat([w > 0, w.diff(dim=-1) != 0], -1) for w in near]
        steady.append(((shape[0] == shape[1]) & (shape[0] == shape[2])).all(-1))
        return p

    return *formula(mapped, q, k, v, keep, scale, added, sink, factors), *steady
