"""Real gloo ranks that save and load generations; each scenario is one start of a number of ranks.

Legend: N rows, D columns; `w` is sharded over rows as FSDP2 does, `tp` over columns, `b` is
replicated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from spiketriage.errors import SpiketriageError
from spiketriage.train.generations.background_save import BackgroundSaver
from spiketriage.train.generations.generation import Provenance, load_verified, save
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.recording import random_state

PROVENANCE = Provenance(
    hparams={"clip": 1.0},
    schedule={"kind": "constant"},
    code_path="code/r1",
    code_digest="0" * 32,
    config_digest="1" * 32,
    index_digest="2" * 32,
)


def whole(seed: int) -> dict[str, Tensor]:
    """Every tensor of the state numbered `seed`, as one rank would hold it alone."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        "w": torch.randn(10, 3, generator=generator),
        "tp": torch.randn(4, 8, generator=generator),
    }
    return {**made, "b": torch.randn(5, generator=generator).to(torch.bfloat16)}


def sharded(tensors: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:
    """The same over the ranks of `mesh`."""
    places = {"w": [Shard(0)], "tp": [Shard(1)]}
    return {
        name: distribute_tensor(tensor, mesh, places[name]) if name in places else tensor.clone()
        for name, tensor in tensors.items()
    }


def state(seed: int, mesh: DeviceMesh, *, is_global: bool = True) -> RankState:
    """What a rank holds after step `seed`."""
    params, moments = sharded(whole(seed), mesh), sharded(whole(seed + 1000), mesh)
    return RankState(
        params=params,
        optimizer={
            **{f"{name}/exp_avg": tensor for name, tensor in moments.items()},
            "w/step": torch.tensor(float(seed)),
        },
        buffers={"router.bias": torch.full((4,), float(seed))},
        scheduler={"last_step": seed},
        scaler={"scale": 1024.0},
        guard={"patience": seed},
        rng=random_state.saved(),
        cursor={"position": 7 * seed, **({} if is_global else {"rank": dist.get_rank()})},
        is_cursor_global=is_global,
        num_tokens=64 * seed,
    )


def told(loaded: RankState) -> dict[str, Any]:
    """What a rank has after a load; tensors put together again."""
    tensors = {
        name: _full(one).float().tolist()
        for name, one in {**loaded.params, **loaded.optimizer}.items()
    }
    rest = {
        name: getattr(loaded, name)
        for name in ("scheduler", "scaler", "guard", "rng", "cursor", "num_tokens")
    }
    local = {
        name: list(one.to_local().shape)
        for name, one in loaded.params.items()
        if isinstance(one, DTensor)
    }
    return {
        "tensors": tensors,
        "local": local,
        "bias": loaded.buffers["router.bias"].tolist(),
        **rest,
    }


def refused(work: Any) -> list[Any]:
    """Exit code and message of the error that `work` ends with."""
    try:
        work()
    except SpiketriageError as error:
        return [error.exit_code, error.message]
    return [0, ""]


def saving(folder: Path, mesh: DeviceMesh) -> dict[str, Any]:
    """Generation 20 at once, 40 in the background while everything is overwritten, 60 with a cursor for each rank."""
    save(folder, step=20, state=state(20, mesh), provenance=PROVENANCE)
    saver = BackgroundSaver(folder)
    live = state(40, mesh)
    rng = dict(live.rng)
    saver.save(step=40, state=live, provenance=PROVENANCE)
    with torch.no_grad():
        for tensors in live.groups.values():
            for tensor in tensors.values():
                tensor.fill_(float("nan"))
    total = torch.ones(1)
    dist.all_reduce(total)  # the step goes on with collectives of its own meanwhile
    saver.save(step=60, state=state(60, mesh, is_global=False), provenance=PROVENANCE)
    newest = saver.wait()
    mine = load_verified(folder / "step-000060", state(0, mesh).params)
    return {
        "newest": newest.name if newest else "",
        "rng": rng,
        "total": float(total),
        "mine": mine.cursor,
    }


def loading(folder: Path, mesh: DeviceMesh) -> dict[str, Any]:
    """Generation 40 as this number of ranks gets it, and why 60 is refused."""
    like = state(0, mesh).params
    return {
        "40": told(load_verified(folder / "step-000040", like)),
        "60": refused(lambda: load_verified(folder / "step-000060", like)),
    }


def rotten(folder: Path, mesh: DeviceMesh) -> dict[str, Any]:
    """What every rank says of generation 20, whose second rank's file is no longer what it was.

    Then of a full disk.
    """
    like = state(0, mesh).params
    lost = refused(lambda: load_verified(folder / "step-000020", like))
    (folder / "step-000080").write_text("in the way") if dist.get_rank() == 0 else None
    (folder / "superseded").write_text("in the way") if dist.get_rank() == 0 else None
    dist.barrier()
    return {
        "lost": lost,
        "unsaved": refused(
            lambda: save(folder, step=80, state=state(80, mesh), provenance=PROVENANCE)
        ),
    }


SCENARIOS = {"saving": saving, "loading": loading, "rotten": rotten}


def work(rank: int, num_ranks: int, folder: str, scenario: str, out: str) -> None:
    """One rank of a scenario; its answer goes to `out`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=num_ranks
    )
    mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("dp",))
    torch.manual_seed(rank)
    answer = SCENARIOS[scenario](Path(folder), mesh)
    (Path(out) / f"rank-{rank}.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def start(folder: Path, scenario: str, num_ranks: int, out: Path) -> list[dict[str, Any]]:
    """What each rank of a scenario answered; a fork server imports torch once for all of them."""
    out.mkdir()
    preload = ("torch.distributed.tensor", "torch.distributed.checkpoint")
    assert (
        run_ranks(work, num_ranks, num_ranks, str(folder), scenario, str(out), preload=preload)
        == [0] * num_ranks
    )
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
