"""Run the Python lines of a README with the installed library, and say which kernels ran: python readme_lines.py README.md"""

import re
import sys
from pathlib import Path

import torch

scores, mask, q = torch.randn(2, 9), torch.arange(9) < 7, torch.randn(1, 2, 9, 8)
names = {"scores": scores, "mask": mask, "q": q, "k": q, "v": q, "model": torch.nn.TransformerEncoderLayer(16, 2)}
(block,) = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text("utf-8"), re.S)
exec(block, names)
sa, p = names["sa"], names["p"]
assert (p[:, 7:] == 0).all() and torch.allclose(p.sum(-1), torch.ones(2)) and names["out"].shape == q.shape
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if re.search(r"lib(g|i)?omp", line)}
assert len(runtimes) <= 1, f"more than one OpenMP runtime: {runtimes}"
used = sa.kernels.select("sparsemax", scores).__name__.rpartition(".")[2]
print(f"the README's lines run with {used} kernels; OpenMP runtimes: {', '.join(runtimes) or 'none'}")
