"""fairseq's Trainer with a step of its own, which never waits for the GPU.

Of fairseq's step it keeps the order of what is computed, so that on a CPU the weights are the same to the last bit. What
differs:

* nothing of an update is read by the host. What the criterion logs, and the gradient's norm, stay on the device until `read`,
  which fetches those of all updates since in one transfer. A norm that is no number is therefore told up to READ_EVERY
  updates later, under its own number; nothing is saved in between.
* mixed precision is torch's autocast over weights, gradients and optimiser in float32. fp16 scales the loss; an update whose
  gradient overflows changes no weight, lowers the scale and counts as an update (fairseq repeats the batch).
* on a GPU the optimisers are torch's fused ones. Adam's epsilon then stands beside the corrected root of the second moment.
* running out of memory ends the training (fairseq leaves the batch out and says so in its log alone).

With several processes fairseq's exchange of the logged sums remains as it is; it waits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import trainer
from fairseq.logging import metrics
from torch import Tensor

READ_EVERY = 20  # updates
SMALLEST_SCALE = 1e-4  # of the loss in fp16: below it no gradient is finite
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Logged:
    """What one update, or one batch of dev, has logged; tensors until it is read.

    Attributes:
        update: its number, 0 in dev. lr: the rate it was made with.
        log: the criterion's sums. norm: of the gradient; None in dev.
        loss: as the criterion reduces it, known after `Trainer.read`.
    """

    update: int
    lr: float
    log: dict[str, Any]
    norm: Tensor | None = None
    loss: float = 0.0


class Trainer(trainer.Trainer):
    """See above. `common.fp16` and `common.bf16` of the configuration mean autocast."""

    def __init__(self, config: Any, task: Any, model: Any, criterion: Any) -> None:
        self.half = next((dtype for name, dtype in HALF.items() if config.common[name]), None)
        config.common.fp16 = config.common.bf16 = False  # fairseq would convert the weights
        super().__init__(config, task, model, criterion)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.half is torch.float16)
        self.pending: list[Logged] = []

    def _build_optimizer(self) -> None:
        super()._build_optimizer()
        if not (self.cuda or self.scaler.is_enabled()):
            return
        wrapper, rate = self._optimizer, self._optimizer.get_lr()
        made = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.cfg.optimizer._name]
        wrapper._optimizer = made(list(wrapper.params), **wrapper.optimizer_config, fused=True)
        wrapper.set_lr(rate)

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> tuple[Any, bool]:
        """On the device, but for the lengths of sources: packing a sequence takes them on the host."""
        lengths = sample["net_input"].get("src_lengths") if sample else None
        prepared, dummy = super()._prepare_sample(sample, is_dummy)
        if lengths is not None and not dummy:
            prepared["net_input"]["src_lengths"] = lengths
        return prepared, dummy

    def train_step(self, samples: list[Any], raise_oom: bool = False) -> None:
        """One update from the gradients of all `samples`; what it logs is in `pending`."""
        self._set_seed()
        self.model.train()
        self.criterion.train()
        self.zero_grad()
        logs, size, dummy = [], 0, False
        for i, sample in enumerate(samples):
            sample, dummy = self._prepare_sample(sample)
            several = self.data_parallel_world_size > 1 and hasattr(self.model, "no_sync") and i + 1 < len(samples)
            with self.model.no_sync() if several else contextlib.nullcontext():
                with self._precision():
                    loss, one, log = self.criterion(self.model, sample)
                self.scaler.scale(loss * 0 if dummy else loss).backward()
            logs.append(log)
            size += one
        size = float(0 if dummy else size)
        if self._sync_stats():
            logs, (size,) = self._aggregate_logging_outputs(logs, size, ignore=dummy)
        self.optimizer.all_reduce_grads(self.model)
        self.scaler.unscale_(self.optimizer.optimizer)
        self.optimizer.multiply_grads(self.data_parallel_world_size / (size or 1.0))
        norm = self.clip_grad_norm(self.cfg.optimization.clip_norm)
        update, rate = self.get_num_updates() + 1, self.get_lr()
        if update % READ_EVERY == 0:
            self._check_grad_norms(norm)
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.set_num_updates(update)
        self.pending.append(Logged(update, rate, _summed(logs), norm))

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if self.half is None:
            yield
            return
        # oneDNN, on a CPU, has half precision for some processors and sizes only (see also tasks.layers.Lstm)
        plain = contextlib.nullcontext() if self.cuda else torch.backends.mkldnn.flags(enabled=False)
        with plain, torch.autocast(self.device.type, self.half):
            yield

    @torch.no_grad()
    def valid_step(self, sample: Any, raise_oom: bool = False) -> None:
        """The losses of a batch of dev, in float32; what it logs is in `pending`."""
        self.model.eval()
        self.criterion.eval()
        sample, dummy = self._prepare_sample(sample)
        _, _, log = self.criterion(self.model, sample)
        logs = [log]
        if self.data_parallel_world_size > 1:
            logs, _ = self._aggregate_logging_outputs(logs, 0.0, ignore=dummy)
        self.pending.append(Logged(0, 0.0, _summed(logs)))

    def read(self) -> Iterator[Logged]:
        """What has been logged since the last time, in order, entered into fairseq's meters one by one; waits for the device.

        Raises:
            FloatingPointError: the scale of the loss in fp16 has fallen so low that every gradient overflows.
        """
        pending, self.pending = self.pending, []
        if not pending:
            return
        names = [name for name, value in pending[0].log.items() if isinstance(value, Tensor)]
        columns = [torch.stack([one.log[name].detach() for one in pending]).double() for name in names]
        norms = [one.norm.detach() for one in pending if one.norm is not None]
        columns += [torch.stack(norms).double()] if norms else []
        if self.scaler.is_enabled():
            columns.append(self.scaler._get_scale_async().double().expand(len(pending)))  # type: ignore[union-attr]
        values = torch.stack(columns).tolist()
        if self.scaler.is_enabled() and values.pop()[0] < SMALLEST_SCALE:
            raise FloatingPointError(
                f"the loss was scaled down to {SMALLEST_SCALE:g} and fp16 still overflows; try bf16"
            )
        criterion = self.get_criterion()
        for i, one in enumerate(pending):
            one.log |= {name: column[i] for name, column in zip(names, values)}
            with metrics.aggregate() as own:
                criterion.reduce_metrics([one.log])
            one.loss = float(own.get_smoothed_value("loss"))
            if norms:
                one.norm = torch.tensor(values[-1][i], dtype=torch.float32)
                if math.isfinite(values[-1][i]):
                    metrics.log_scalar("gnorm", one.norm, round=3)
            yield one

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.scaler.is_enabled():
            state["extra_state"]["scaler"] = self.scaler.state_dict()
        return state

    def load_checkpoint(self, *given: Any, **named: Any) -> Any:
        extra = super().load_checkpoint(*given, **named)
        if self.scaler.is_enabled() and extra is not None:
            self.scaler.load_state_dict(extra["scaler"])
        return extra


def _summed(logs: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what several batches have logged."""
    return logs[0] if len(logs) == 1 else {name: sum(log.get(name, 0) for log in logs) for name in logs[0]}
