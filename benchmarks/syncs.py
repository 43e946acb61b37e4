"""How often a piece of work makes the host wait for the GPU.

On a GPU torch says so itself (`torch.cuda.set_sync_debug_mode`). Elsewhere two modes see what would make it wait there: operations
whose result's size or value the host must know, and methods that hand a tensor's content to Python. Checks that a GPU is
spared (`rows.shape.asynchronous`) are left out there too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_attention.rows import shape

# by a name of the dispatcher; `index` and `index_put` wait for a boolean index alone
OPERATIONS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
)
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
METHODS = ("tolist", "numpy", "cpu", "__array__")  # of a tensor; `item`, `bool` and the like end in _local_scalar_dense


class _Operations(TorchDispatchMode):
    """`host`: addresses of memory that is the host's anyway; the batch sizes of a packed sequence are too."""

    def __init__(self, found: list[str], host: Collection[Tensor]) -> None:
        super().__init__()
        self.found, self.host = found, {_address(t) for t in host}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in INDEXED:
            if any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]):
                self.found.append(f"{name} by a boolean")
        elif name in OPERATIONS and _address(args[0]) not in self.host:
            self.found.append(name)
        result = func(*args, **(kwargs or {}))
        if name == "_pack_padded_sequence":
            self.host.add(_address(result[1]))
        return result


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class _Methods(TorchFunctionMode):
    def __init__(self, found: list[str], host: Collection[int]) -> None:
        super().__init__()
        self.found, self.host = found, host

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in METHODS and id(args[0]) not in self.host:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def syncs(work: Callable[[], Any], device: str | torch.device = "cpu", host: Collection[Tensor] = ()) -> list[str]:
    """What makes the host wait in `work()`, by name, in order.

    Args:
        device: where the work is. On a GPU nothing but the warnings' text is known of each.
        host: tensors that lie on the CPU even where the work is on a GPU.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        return [str(w.message) for w in caught if "synchronizing CUDA operation" in str(w.message)]
    found: list[str] = []
    as_on_a_gpu = mock.patch.object(shape, "asynchronous", lambda x: True)
    with as_on_a_gpu, _Methods(found, {id(t) for t in host}), _Operations(found, host):
        work()
    return found
