"""The beginning of a program in which torch, what torch requires and this library can be imported, and nothing else."""

HEAD = """
import importlib, pkgutil, sys

class Alone:
    known = {*sys.stdlib_module_names, *"torch torchgen functorch typing_extensions sympy mpmath networkx filelock fsspec jinja2".split()}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.known | {"sparse_attention"}:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Alone())
import torch
import sparse_attention as sa
"""
