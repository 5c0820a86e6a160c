"""Ranks of a gloo job that record, for tests.

Forked from one process, so that torch is imported once.

`python recorder_ranks.py FOLDER layouts` trains one model under several placements; `… hang` never
ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from recording import IDENTITY
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from spiketriage.train.recording import ddp
from spiketriage.train.recording.alerts import Alerts
from spiketriage.train.recording.channels import Command
from spiketriage.train.recording.observer import Observer
from spiketriage.train.recording.recorder import Recorder

WIDTH = 6
MAX_NORM = 0.25


def fresh() -> nn.Sequential:
    """The same model on every rank."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH))


def inputs(rank: int, step: int) -> torch.Tensor:
    """This rank's rows."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def update(
    observer: Observer, recorder: Recorder, number: int, backward: object, rank: int
) -> None:
    """One recorded step; `backward` leaves reduced gradients behind."""
    with recorder.step(number) as step:
        observer.begin(step)
        backward(inputs(rank, number))  # type: ignore[operator]
        norm = observer.reduced_gradients(step)
        for group in observer.optimizer.param_groups:
            for one in group["params"]:
                one.grad.mul_((MAX_NORM / (norm + 1e-6)).clamp(max=1.0))
        observer.clipped(step, norm, MAX_NORM)
        observer.optimizer.step()
        observer.updated(step)
        observer.optimizer.zero_grad()


def run(folder: Path, name: str, rank: int, model: nn.Module, **options: object) -> None:
    """Two steps of `model` under one placement."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Recorder(
        folder / name, rank=rank, identity=IDENTITY, budget_share=None, patience_s=60
    ) as recorder:
        names = [(key.removeprefix("module."), one) for key, one in model.named_parameters()]
        observer = Observer(names, optimizer, recorder=recorder, **options)  # type: ignore[arg-type]
        if isinstance(model, DistributedDataParallel):
            ddp.watch(model, observer)
        for number in (1, 2):
            update(observer, recorder, number, lambda x: model(x).square().mean().backward(), rank)


def plain_tensor_parallel(folder: Path, rank: int) -> None:
    """Plain tensors that hold a shard, as in Megatron.

    The first layer's rows and the second's columns, by hand.
    """
    whole, half = fresh(), slice(rank % 2 * 3, rank % 2 * 3 + 3)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = groups[rank // 2]
    parts = {
        "0.weight": nn.Parameter(whole[0].weight.detach()[:, half].clone()),
        "2.weight": nn.Parameter(whole[2].weight.detach()[half].clone()),
        "0.bias": nn.Parameter(whole[0].bias.detach().clone()),
    }
    optimizer = torch.optim.AdamW(parts.values(), lr=1e-2)
    with Recorder(
        folder / "plain", rank=rank, identity=IDENTITY, budget_share=None, patience_s=60
    ) as recorder:
        sharded = {"0.weight": (group,), "2.weight": (group,)}
        observer = Observer(parts.items(), optimizer, recorder=recorder, groups=sharded)

        def backward(_: torch.Tensor) -> None:
            for one in parts.values():
                one.grad = one.detach().clone()  # the gradient of half the squared norm

        update(observer, recorder, 1, backward, rank)


def layouts(folder: Path, rank: int) -> None:
    """Replicated by DDP; FSDP2 over two ranks of two replicas.

    Tensor parallel beside replicated tensors.
    """
    run(folder, "ddp", rank, DistributedDataParallel(fresh()))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    run(folder, "fsdp", rank, fully_shard(fresh(), mesh=mesh))
    plain_tensor_parallel(folder, rank)
    model = fresh()
    model[0].weight = nn.Parameter(
        distribute_tensor(model[0].weight.detach(), mesh, [Replicate(), Shard(0)])
    )
    model[2].weight = nn.Parameter(
        distribute_tensor(model[2].weight.detach(), mesh, [Replicate(), Shard(1)])
    )
    for one in (model[0].bias, model[2].bias):
        one.grad = one.detach().clone()
    for layer in (model[0], model[2]):
        layer.weight.grad = layer.weight.detach().clone()
    with Recorder(
        folder / "tensor", rank=rank, identity=IDENTITY, budget_share=None, patience_s=60
    ) as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
        with recorder.step(1) as step:
            observer.begin(step)
            observer.reduced_gradients(step)
            optimizer.step()
            observer.updated(step)


def hang(folder: Path, rank: int) -> None:
    """Rank 1 never joins the all-reduce.

    The telemetry of rank 0 goes into a pipe that nobody reads.
    """
    if rank:
        os.read(0, 1)  # until the test is over
        return
    pipe = folder / "stalled.seg"
    os.mkfifo(pipe)
    os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    alerts = Alerts(
        [Command(["sh", "-c", f"cat >> {folder}/alerts; echo >> {folder}/alerts"])],
        look_every_s=0.05,
    )
    recorder = Recorder(
        folder, rank=rank, identity=IDENTITY, path=pipe, patience_s=0.01, budget_share=None
    )
    alerts.watch(recorder, stall_after_s=0.1, run="hung", next_command="spiketriage status")
    for number in range(1, 60):
        with recorder.step(number) as step:
            step.ids("x" * 4000)
    with recorder.step(60) as step:
        step.tensor("local_gradient", "w", torch.ones(3))
        dist.all_reduce(torch.ones(3))


def main() -> None:
    """Fork the ranks and wait for them."""
    folder, what = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    world_size = {"layouts": 4, "hang": 2}[what]
    for rank in range(world_size):
        if not os.fork():
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
            )
            {"layouts": layouts, "hang": hang}[what](folder, rank)
            sys.stdout.flush()
            os._exit(0)
    failed = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(world_size)]
    sys.exit(max(abs(code) for code in failed))


if __name__ == "__main__":
    main()
