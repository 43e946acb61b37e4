"""Call the row kernels of an unpacked wheel without torch, and print what must not depend on the processor beyond rounding.

python tests/wheel_kernels.py FOLDER      # tests/fresh.sh compares x86-64 with an emulated aarch64
"""

import ctypes
import importlib.util
import math
import random
import sys
from pathlib import Path

ROWS, N = 50, 37
CALLS = [("sparsemax", (1.0,)), ("entmax", (1.5,)), ("entmax", (1.3,)), ("entmax", (3.0,)), ("pnormmax", (1.5, 1.0))]
CALLS += [("fusedmax", (0.1, 1.0)), ("oscarmax", (0.05, 1.0))]
DIGITS = {"float": 4, "double": 11}

path = Path(sys.argv[1], "sparse_attention", "kernels", "native", "build.py")
spec = importlib.util.spec_from_file_location("build", path)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
drawn = random.Random(0)
for unit, kind in (("float", ctypes.c_float), ("double", ctypes.c_double)):
    assert build.built(unit, build.requested_isa()), "the wheel has no kernels for this processor"
    library, array = build.load(unit), kind * (ROWS * N)
    x, g = (array(*[drawn.uniform(-2, 2) for _ in range(ROWS * N)]) for _ in range(2))
    for name, params in CALLS:
        p, dx, blocks = array(), array(), (ctypes.c_int32 * (ROWS * N))()
        sizes = ctypes.c_int64(ROWS), ctypes.c_int64(N)
        extra = [blocks] if name == "oscarmax" else []
        given = {"oscarmax": [g, blocks], "fusedmax": [g, p, None]}.get(name, [g, p])
        back = params[1:] if name in ("fusedmax", "oscarmax") else params  # these have no lam in their gradients
        status = getattr(library, f"{name}_forward")(x, p, *extra, *sizes, *map(ctypes.c_double, params), 2)
        status |= getattr(library, f"{name}_backward")(*given, dx, *sizes, *map(ctypes.c_double, back), 2)
        marks = [sum(v * math.cos(i) for i, v in enumerate(values)) for values in (p, dx)]
        far = max(abs(sum(p[N * r : N * (r + 1)]) - 1) for r in range(ROWS))
        said = " ".join(f"{mark:.{DIGITS[unit]}f}" for mark in marks)
        print(
            f"{unit} {name} {params}: status {status}, {sum(v == 0 for v in p)} zeros, {said}, sums of 1: {far < 1e-5}"
        )
factors = (ctypes.c_float * 40)()  # the attention's library, by its smallest function
build.load("attention").attention_dropout(
    ctypes.c_double(0.25), ctypes.c_int64(7), ctypes.c_int64(4), ctypes.c_int64(10), factors
)
print("attention", [round(f, 3) for f in factors])
