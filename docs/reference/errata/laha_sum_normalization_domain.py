"""Laha et al. 2018, Table 1 gives sum normalization++ full domain; it is undefined where the scores sum to 0."""

import torch

import sparse_attention as sa

for shift in (1e-3, 1e-6):
    a = torch.tensor([0.5 + shift, -0.5, 0.5 - shift, -0.5], dtype=torch.float64)
    above, below = sa.sum_normalization_pp(a + 1e-9), sa.sum_normalization_pp(a.flip(0) + 1e-9)
    print(f"sum 4e-9, scores {a.tolist()}: {above.tolist()}")
    assert above[0] == 1 and below[3] == 1
zero = sa.sum_normalization_pp(torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64))
print("sum 0:", zero.tolist(), "(with tied largest scores not even the limit is unique)")
assert torch.isnan(zero).all()
