"""Find the operations that make the host wait for the GPU.

On a GPU, torch reports them itself (`torch.cuda.set_sync_debug_mode`). On other devices, two torch modes find the
operations that would wait on a GPU: those whose result has a size or value that the host must know, methods that
pass the content of a tensor to Python, and copies from the host without `non_blocking`. Checks that are skipped on a GPU (`rows.shape.asynchronous`) are skipped there
as well.
"""

import warnings
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_attention.rows import shape

# dispatcher names of operations; those in INDEXED wait only for a boolean index
OPERATIONS = ("_local_scalar_dense", "nonzero", "masked_select", "equal")
OPERATIONS += ("_unique2", "unique_dim", "unique_consecutive")
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
METHODS = ("tolist", "numpy", "cpu", "__array__")  # tensor methods; `item`, `bool` etc. call _local_scalar_dense


class _Operations(TorchDispatchMode):
    """Records operations that would wait.

    `host` has the addresses of memory that is on the host anyway; the batch sizes of a packed sequence are added to it.
    """

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
    """Records methods that would wait. What is computed from `host` alone is on the host, too."""

    def __init__(self, found: list[str], host: Collection[Tensor]) -> None:
        super().__init__()
        self.found, self.host = found, {id(t): t for t in host}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        here = [id(x) in self.host for x in args if isinstance(x, Tensor)]
        if name in METHODS and not here[0]:
            self.found.append(name)
        elif name == "to" and here[0] and not given.get("non_blocking"):
            self.found.append("to: a copy from the host")
        result = func(*args, **given)
        if isinstance(result, Tensor) and name != "to" and here and all(here):
            self.host[id(result)] = result
        return result


def syncs(work: Callable[[], Any], device: str | torch.device = "cpu", host: Collection[Tensor] = ()) -> list[str]:
    """Names of the operations in `work()` that make the host wait, in order.

    Args:
        device: device of the work. On a GPU, the texts of torch's warnings are returned instead of names.
        host: tensors that are on the CPU even if the work is on a GPU.
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
    with as_on_a_gpu, _Methods(found, host), _Operations(found, host):
        work()
    return found
