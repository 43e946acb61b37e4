"""One update of a model: forward, backward, clip, step.

On a CPU, the resulting weights equal those of fairseq's Trainer bit for bit.

This is plain torch code on fairseq's models, criterions and data. fairseq's Trainer (1,600 lines) does more; it is not
used here because of these differences:

* fairseq's Trainer reads the gradient norm in every update, and so waits for the GPU. Here the norm and the values
  logged by the criterion stay on the device until `read` fetches those of all updates since the last call in one
  transfer. A norm that is not finite is therefore reported up to READ_EVERY updates later, with the number of its
  update; nothing is saved in between.
* fairseq's Trainer converts the weights to half precision. Here mixed precision is torch's autocast: weights, gradients
  and optimiser state are float32. With fp16, the loss is scaled; an update whose gradient overflows changes no weight,
  lowers the scale, and still counts as an update.
* fairseq's Trainer skips the batch if memory runs out. Here the training ends.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.utils._pytree import tree_map_only

from repro.options import read
from tasks.config.schedules import SCHEDULES
from tasks.training.job import Job

READ_EVERY = 20  # updates
SMALLEST_SCALE = 1e-4  # smallest loss scale in fp16; if it is too large, no gradient is finite
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Logged:
    """The values logged by one update or one dev batch; they are tensors until `Trainer.read`.

    Attributes:
        update: number of the update, 0 for dev. lr: its learning rate.
        log: the criterion's sums. norm: gradient norm; None for dev.
        measured: means that the criterion computes from the sums, with their weights; set by `Trainer.read`.
    """

    update: int
    lr: float
    log: dict[str, Any]
    norm: Any = None
    measured: dict[str, tuple[float, float]] = field(default_factory=dict)


class Trainer:
    """The model of a job with its criterion, optimiser and schedule.

    Args:
        epoch_updates: number of updates per epoch.
        world: number of processes that share every update; they form torch's default process group.
    """

    def __init__(self, job: Job, epoch_updates: int, world: int = 1) -> None:
        config = job.config
        self.seed, self.clip, self.world = config["seed"], float(config["optim"]["clip"]), world
        self.device = torch.device("cuda" if job.cuda else "cpu")
        torch.manual_seed(self.seed)
        self.model, self.criterion = job.parts.model().to(self.device), job.parts.criterion().to(self.device)
        self.half = HALF.get(config["train"]["precision"])
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.half is torch.float16)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = job.parts.optimizer(self.parameters, job.cuda or self.scaler.is_enabled())
        made = SCHEDULES[config["schedule"]["name"]]
        options = read(made.Options, {k: v for k, v in config["schedule"].items() if k != "name"}, "schedule")
        total = epoch_updates * config["train"]["max_epochs"]
        self.schedule = made(options, config["optim"]["lr"], total, epoch_updates)
        self.updates = 0
        self.pending: list[Logged] = []

    def train_step(self, samples: list[Any]) -> None:
        """Make one update from the gradients of all `samples`; the logged values are added to `pending`."""
        # A resumed training draws the same numbers as an uninterrupted one. torch.manual_seed would also format a stack
        # trace for every kind of device.
        torch.default_generator.manual_seed(self.seed + self.updates)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(self.seed + self.updates)
        rate = self.schedule.rate(self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        self.optimizer.zero_grad()
        logs = []
        for sample in filter(None, samples):
            with self._precision():
                loss, _, log = self.criterion(self.model, self._moved(sample))
            self.scaler.scale(loss).backward()
            logs.append(log)
        log = self._total(logs)
        self._share_gradients()
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        share = self.world / log["sample_size"]
        torch._foreach_mul_(gradients, share.float() if isinstance(share, Tensor) else share)
        # fairseq's function takes the current GPU for the norm, even of gradients on the CPU
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.updates += 1
        self.pending.append(Logged(self.updates, rate, log, norm))

    @torch.no_grad()
    def valid_step(self, sample: Any) -> None:
        """Compute the losses of a dev batch in float32; the logged values are added to `pending`."""
        self.model.eval()
        logs = [self.criterion(self.model, self._moved(sample))[2]] if sample else []
        self.pending.append(Logged(0, 0.0, self._total(logs)))

    def _moved(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the device, except for the source lengths, which packing a sequence needs on the host."""
        lengths = sample["net_input"].get("src_lengths")
        moved = tree_map_only(Tensor, lambda x: x.to(self.device, non_blocking=True), sample)
        if lengths is not None:
            moved["net_input"]["src_lengths"] = lengths
        return moved

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if self.half is None:
            yield
            return
        # on a CPU, oneDNN supports half precision only for some processors and sizes (see also tasks.layers.Lstm)
        plain = contextlib.nullcontext() if self.device.type == "cuda" else torch.backends.mkldnn.flags(enabled=False)
        with plain, torch.autocast(self.device.type, self.half):
            yield

    def _total(self, logs: list[dict[str, Any]]) -> dict[str, Any]:
        """Sum the logs over all batches and all processes; at the end of an epoch a process may have no batch left."""
        names = self.criterion.SUMMED
        total = {name: logs[0][name] if len(logs) == 1 else sum(log[name] for log in logs) for name in names}
        if self.world == 1:
            return total
        new = {"dtype": torch.double, "device": self.device}
        sums = torch.stack([v.double() if isinstance(v, Tensor) else torch.full((), v, **new) for v in total.values()])
        torch.distributed.all_reduce(sums)
        return dict(zip(names, sums.unbind()))

    def _share_gradients(self) -> None:
        """Replace each process's gradient by the mean over all processes."""
        if self.world == 1:
            return
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.cat([p.grad.flatten() for p in self.parameters]) / self.world
        torch.distributed.all_reduce(flat)
        for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
            p.grad.copy_(part.view_as(p))

    def read(self) -> list[Logged]:
        """The values logged since the last call, in order; waits for the device.

        Raises:
            FloatingPointError: the loss scale of fp16 has become so small that no gradient can be finite.
        """
        pending, self.pending = self.pending, []
        if not pending:
            return []
        names = [name for name, value in pending[0].log.items() if isinstance(value, Tensor)]
        columns = [torch.stack([one.log[name].detach() for one in pending]).double() for name in names]
        norms = [one.norm.detach() for one in pending if one.norm is not None]
        columns += [torch.stack(norms).double()] if norms else []
        if self.scaler.is_enabled():
            columns.append(self.scaler._get_scale_async().double().expand(len(pending)))  # type: ignore[union-attr]
        values = torch.stack(columns).tolist()
        if self.scaler.is_enabled() and values.pop()[0] < SMALLEST_SCALE:
            told = f"fp16 overflows even at a loss scale of {SMALLEST_SCALE:g}"
            raise FloatingPointError(f"{told}: set train.precision=bf16")
        for i, one in enumerate(pending):
            one.log |= {name: column[i] for name, column in zip(names, values)}
            one.measured = self.criterion.measured({name: float(value) for name, value in one.log.items()})
            if norms:
                one.norm = values[-1][i]
                if math.isfinite(one.norm):
                    one.measured["gnorm"] = (one.norm, 1)
        return pending

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler", "schedule")}
        return parts | {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "scaler", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = state["updates"]
