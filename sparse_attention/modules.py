"""Mappings as modules: ``sa.make("entmax", alpha=1.5)`` is the same as ``sa.Entmax(alpha=1.5)``.

The registry creates one class for every mapping. The class is named after the mapping, in CamelCase. It takes the same
parameters as the function, in the same order, and ``dim`` as a keyword: ``sa.Sparsemax(dim=1)``. Every class is a
`Mapping`.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .describe import LEARNED, Spec
from .rows.apply import under_contract
from .rows.shape import PLAIN, as_node, tensor, whole

_CLASSES: dict[str, type[Mapping]] = {}


class Mapping(nn.Module):
    """A mapping with its parameters set, called as ``m(scores, mask=None, dim=None)``; ``dim`` defaults to ``m.dim``.

    Numbers are stored unchanged, tensors become buffers, and an ``nn.Parameter`` becomes a parameter. A learned
    ``alpha`` therefore moves with the model, and the optimiser updates it. Each of these can be read as an attribute:
    ``m.alpha``.

    ``sa.make("entmax", alpha="learned")`` creates a parameter ``alpha_logit`` and computes
    ``alpha = low + (high - low) sigmoid(alpha_logit)``. The mapping declares the interval from low to high; alpha
    starts in its middle. `learned` returns the current values; `spread` gives each head its own value.

    Call shapes:
        scores is ``[..., n, ...]`` with ``n`` at ``dim``; mask is bool, broadcastable to scores, ``True`` = keep. The
        result has the shape of scores. Other keyword arguments (such as ``bounds`` for the constrained mappings) are
        passed to the function.
    """

    spec: ClassVar[Spec]
    inner: Any  # for a mapping registered as a class: its instance
    dim: int = -1
    _was_meta = False  # whether parameters were on the meta device: then they may hold uninitialised memory

    def __init__(self, *given: Any, **params: Any):
        super().__init__()
        names = [p.name for p in self.spec.params]
        if self.spec.over == "row":
            self._refuse_a_dimension(given, names)
            self.dim = whole(params.pop("dim", -1))
        if len(given) > len(names) or set(names[: len(given)]) & set(params):
            raise TypeError(f"{type(self).__name__} takes ({', '.join(names)}), each once; got {given} and {params}")
        self._numbers: dict[str, Any] = {}
        self._learned: list[str] = []  # parameters given as tensors or as "learned"
        self._logits: list[str] = []  # only the parameters given as "learned"
        self._first: dict[str, Tensor] = {}  # the values of the parameters given as tensors
        self._keep(self.spec.check({**dict(zip(names, given)), **params}))
        self._note_meta()

    def _refuse_a_dimension(self, given: tuple[Any, ...], names: list[str]) -> None:
        """Raise an error for a positional int that was probably meant as ``dim``, torch.nn.Softmax's first argument.

        This applies to a negative int, an int given for gamma, and an int given to a mapping without parameters.
        """
        for value, name in zip(given, names or [""]):
            if type(value) is int and (value < 0 or name in ("gamma", "")):
                own = type(self).__name__
                other = f" or {own}({name}={float(value)!r})" if name and value > 0 else ""
                raise TypeError(f"{own}({value}): did you mean {own}(dim={value}){other}? dim must be given by name")

    def _keep(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Tensor):
                self._learned.append(name)
                self._first[name] = value.detach().clone()
                if not isinstance(value, nn.Parameter):
                    self.register_buffer(name, value)
                    continue
            elif value == LEARNED:
                self._learned.append(name)
                self._logits.append(name)
                self.register_parameter(f"{name}_logit", nn.Parameter(torch.zeros(1)))
                continue
            else:
                self._numbers[name] = value
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_numbers", ()):
            value = self._numbers[name] = next(p for p in self.spec.params if p.name == name).check(value)
        elif name in self.__dict__.get("_logits", ()):
            raise ValueError(f"{name} is learned: set {name}_logit, or make the mapping with a number")
        super().__setattr__(name, value)

    def _apply(self, *args: Any, **given: Any) -> Mapping:
        super()._apply(*args, **given)
        self._note_meta()
        return self

    def _note_meta(self) -> None:
        self._was_meta = self._was_meta or any(self._held(name).is_meta for name in self._learned)

    def _held(self, name: str) -> Tensor:
        return getattr(self, f"{name}_logit" if name in self._logits else name)  # type: ignore[no-any-return]

    @property
    def _is_hf_initialized(self) -> bool:
        """Read by from_pretrained of transformers, when the parameters of the checkpoint are marked and before the
        model's own `_init_weights`, which knows torch's modules only: initialise the parameters without a mark."""
        for name in self._learned if self._was_meta else ():
            if not (self._held(name).is_meta or getattr(self._held(name), "_is_hf_initialized", False)):
                self._reset(name)
        return self.__dict__.get("_hf_initialized", False)

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, value: bool) -> None:
        self.__dict__["_hf_initialized"] = value

    def spread(self, *shape: int) -> Mapping:
        """Return a copy that learns one value for each index of ``shape``; the logits are initialised from N(0, 1).

        ``spread(heads, 1)`` gives each head of scores ``[B, heads, T, n]`` its own value (Correia et al. 2019). A
        mapping without learned parameters is returned unchanged.
        """
        if not self._logits:
            return self
        own = copy.deepcopy(self)
        for name in self._logits:
            setattr(own, f"{name}_logit", nn.Parameter(torch.randn(*shape)))
        return own

    def reset_parameters(self) -> None:
        """Set the parameters as the constructor did, for memory that ``to_empty`` left uninitialised.

        Raises:
            ValueError: a parameter was given as a tensor on the meta device, so its value is unknown.
        """
        for name in self._learned:
            self._reset(name)

    def _reset(self, name: str) -> None:
        if name in self._logits:
            logit = getattr(self, f"{name}_logit")
            nn.init.zeros_(logit) if logit.shape == (1,) else nn.init.normal_(logit)  # see `spread`
        elif self._first[name].is_meta:
            raise ValueError(
                f"{name} was given on the meta device, so its value is unknown; make the mapping with a number, with "
                '"learned", or with a tensor on the CPU'
            )
        else:
            with torch.no_grad():
                getattr(self, name).copy_(self._first[name])

    def learned(self) -> dict[str, Tensor]:
        """The current values, by name, of the hyperparameters given as "learned"."""
        found = {}
        for name in self._logits:
            low, high = next(p.learned for p in self.spec.params if p.name == name and p.learned)
            found[name] = low + (high - low) * torch.sigmoid(getattr(self, f"{name}_logit"))
        return found

    @property
    def params(self) -> dict[str, Any]:
        """All parameters by name, both numbers and tensors."""
        given = {name: getattr(self, name) for name in self._learned if name not in self._logits}
        return {**self._numbers, **given, **self.learned()}

    def forward(self, scores: Tensor, mask: Tensor | None = None, dim: int | None = None, **inputs: Tensor) -> Tensor:
        """Weights of the scores, in their shape.

        Args:
            scores: ``[..., n, ...]``.
            mask: bool, broadcastable to the scores, True = keep; masked positions get exactly 0.
            dim: the dimension of the mapping; if not given, that of the module.
            inputs: further tensors that the mapping needs, such as ``bounds``.

        Raises:
            TypeError: an argument is in the wrong place; the message names the one that was probably meant.
            ValueError: a value out of its range.
        """
        if scores.__class__ not in PLAIN and (node := as_node(self, scores, mask, dim, **inputs)) is not None:
            return node  # type: ignore[no-any-return]
        values = self._numbers if not self._learned else self.params
        dim = self.dim if dim is None else dim
        return self.spec.function(scores, dim=dim, mask=mask, **values, **inputs)  # type: ignore[misc]

    def start(self, mask: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """The state before the first step: a dict of batch-first tensors, which a beam search may reorder.

        Args:
            mask: bool ``[B, n]``, True = keep.
            inputs: the inputs named in ``spec.inputs``, batch-first. If the mapping is not stateful, they are the whole
                state.
        """
        return dict(inputs)

    def step(
        self, scores: Tensor, state: dict[str, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one step on scores and mask ``[B, n]``; returns the attention ``[B, n]`` and the next state."""
        return self(scores, mask=mask, dim=-1, **state), state

    def extra_repr(self) -> str:
        """The parameters between the brackets of ``repr``; tensors by shape, and whether they are learned."""
        shown = [f"{name}={value!r}" for name, value in self._numbers.items()]
        tensors = {name: value for name, value in self.params.items() if name in self._learned}
        shown += [f"dim={self.dim}"] if self.dim != -1 else []
        shown += [f"{n}=<{'learned' if t.requires_grad else 'fixed'} {tuple(t.shape)}>" for n, t in tensors.items()]
        return ", ".join(shown)

    def __reduce__(self) -> Any:
        return _revive, (type(self).__module__, self.spec.name), self.__dict__


class _Inner(Mapping):
    """A mapping registered as a class; masks, ``dim`` and precision are handled around its call."""

    inner_class: ClassVar[type[nn.Module]]

    def _keep(self, values: dict[str, Any]) -> None:
        self._numbers.update(values)
        self.inner = self.inner_class(**values)

    def forward(self, scores: Tensor, mask: Tensor | None = None, dim: int | None = None, **inputs: Tensor) -> Tensor:
        return under_contract(self.inner, scores, self.dim if dim is None else dim, mask, **inputs)


class _Stateful(_Inner):
    """A mapping registered as a class with ``start`` and ``step``.

    A call runs all steps on scores ``[B, T, n]``; the mask is ``[B, n]`` or has the shape of the scores.
    """

    def start(self, mask: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return self.inner.start(mask, **inputs)

    def step(
        self, scores: Tensor, state: dict[str, Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        after = state

        def one(x: Tensor, keep: Tensor) -> Tensor:
            nonlocal after
            p, after = self.inner.step(x, state, keep)
            return p

        return under_contract(one, scores, -1, mask), after

    def forward(self, scores: Tensor, mask: Tensor | None = None, dim: int | None = None, **inputs: Tensor) -> Tensor:
        tensor(scores)
        dim = self.dim if dim is None else dim
        if scores.ndim != 3 or dim not in (-1, 2):
            raise ValueError(
                f"{self.spec.name} needs scores [B, T, n] and dim=-1 or 2; got shape {tuple(scores.shape)}, dim={dim}"
            )
        keep = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
        keep = (keep.unsqueeze(1) if keep.ndim == 2 else keep).expand(scores.shape)
        state, steps = self.start(keep.any(1), **inputs), []
        for x, kept in zip(scores.unbind(1), keep.unbind(1)):
            p, state = self.step(x, state, kept)
            steps.append(p)
        return torch.stack(steps, 1) if steps else scores.clone()


class _Direct(Mapping):
    """A mapping that does not map score vectors: arguments are passed on unchanged."""

    def forward(self, *args: Any, **inputs: Any) -> Any:  # type: ignore[override]
        return self.spec.function(*args, **self.params, **inputs)  # type: ignore[misc]


class _DirectInner(_Inner):
    def forward(self, *args: Any, **inputs: Any) -> Any:  # type: ignore[override]
        return self.inner(*args, **inputs)


def module_class(spec: Spec, thing: Any, contract: bool) -> type[Mapping]:
    """Create the module class for a mapping; ``thing`` is the registered function or ``nn.Module`` class."""
    told = [f"Module of `{spec.name}`: {spec.summary}"]
    told += ["", "Args:", *(f"    {p.name}: {p.meaning}; {p.range}." for p in spec.params)] if spec.params else []
    taken = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=p.default) for p in spec.params]
    taken += [inspect.Parameter("dim", inspect.Parameter.KEYWORD_ONLY, default=-1)] * (spec.over == "row")
    members: dict[str, Any] = {"__module__": thing.__module__, "__doc__": "\n".join(told), "spec": spec}
    members["__signature__"] = inspect.Signature(taken)
    base: type[Mapping] = Mapping if spec.over == "row" else _Direct
    if inspect.isclass(thing):
        members["inner_class"] = thing
        base = _Stateful if spec.stateful else _Inner if contract else _DirectInner
    _CLASSES[spec.name] = type("".join(part.capitalize() for part in spec.name.split("_")), (base,), members)
    return _CLASSES[spec.name]


def _revive(module: str, name: str) -> Mapping:
    """Create an empty module of the mapping, for pickle; if necessary, import the file that registers the mapping."""
    if name not in _CLASSES:
        importlib.import_module(module)
    return _CLASSES[name].__new__(_CLASSES[name])
