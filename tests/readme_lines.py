"""Run the Python lines of a README with the installed library, and say which kernels ran: python readme_lines.py README.md"""

import contextlib
import io
import re
import sys
from pathlib import Path

((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", Path(sys.argv[1]).read_text("utf-8"), re.S)
names: dict = {}
with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(code, names)
assert printed.getvalue() == shown, f"the lines print\n{printed.getvalue()}"
with open("/proc/self/maps") as maps:
    runtimes = {line.split()[-1] for line in maps if re.search(r"lib(g|i)?omp", line)}
assert len(runtimes) <= 1, f"more than one OpenMP runtime: {runtimes}"
used = names["sa"].kernels.select("sparsemax", names["scores"]).__name__.rpartition(".")[2]
print(f"the README's lines run with {used} kernels; OpenMP runtimes: {', '.join(runtimes) or 'none'}")
