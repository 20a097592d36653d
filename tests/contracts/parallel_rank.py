"""One of two processes that train one network together, in every way; the first one saves what came out."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from families import FAMILIES  # noqa: E402
from training import batch, small  # noqa: E402

import timestepper  # noqa: E402
from timestepper.errors import WrappedModelError  # noqa: E402
from timestepper.integrations.watching import look_ahead, scalars  # noqa: E402


def seresnet() -> nn.Module:
    torch.manual_seed(0)
    net = timestepper.attach(FAMILIES["timm seresnet18"]())
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)  # timm's last norms begin at zero
    return net


NETWORKS = {"resnet": lambda: small().double().eval(), "gated": lambda: seresnet().double().eval()}


def blocks(net: nn.Module) -> list[nn.Module]:
    return [block for name in ("layer1", "layer2", "layer3", "layer4") for block in getattr(net, name, ())]


def whole(net: nn.Module) -> nn.Module:
    return fully_shard(net, mesh=init_device_mesh("cpu", (2,)))


def by_blocks(net: nn.Module) -> nn.Module:
    for block in blocks(net):
        fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
    return whole(net)


def only_blocks(net: nn.Module) -> nn.Module:
    for block in blocks(net):
        fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
    return net


def by_blocks_recomputed(net: nn.Module) -> nn.Module:
    kinds = {type(block) for block in blocks(net)}
    apply_activation_checkpointing(net, check_fn=lambda module: type(module) in kinds)
    return by_blocks(net)


WAYS = {
    "DDP": DistributedDataParallel,
    "FSDP whole": whole,
    "FSDP blocks": by_blocks,
    "FSDP only blocks": only_blocks,
    "FSDP blocks recomputed": by_blocks_recomputed,
}


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def plain_name(name: str) -> str:
    return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")


def one_step(net: nn.Module, rank: int, way: str) -> dict:
    """Each process has its half of the batch; then one step of SGD on the gradients of both."""
    images, labels = batch()
    half = slice(2 * rank, 2 * rank + 2)
    F.cross_entropy(net(images[half].double()), labels[half]).backward()
    if way == "FSDP only blocks":  # what is not sharded is nobody's business but ours
        for parameter in net.parameters():
            if not hasattr(parameter, "full_tensor"):
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
    gradients = {plain_name(name): full(p.grad) for name, p in net.named_parameters() if p.grad is not None}
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    options = StateDictOptions(full_state_dict=True)
    state = {plain_name(name): value for name, value in get_model_state_dict(net, options=options).items()}
    return {"gradients": gradients, "state": state, "logits": net(images.double()).detach()}


def refusal(act: Callable[[], object]) -> str:
    try:
        act()
    except WrappedModelError as error:
        return str(error)
    return "nothing"


def looked_at(net: nn.Module, images: torch.Tensor) -> dict:
    """What every rank can ask of a network between two forwards."""
    for part in net.modules():
        if isinstance(part, FSDPModule):
            part.reshard()  # the root keeps its parameters whole after a forward without a backward
    summary = timestepper.summary(net, (3, 32, 32))
    found = {
        "step_sizes": timestepper.step_sizes(net),
        "evolution_time": timestepper.evolution_time(net),
        "influence": timestepper.descriptor_influence(net, "mean"),
        "counts": [summary.parameters_train, summary.parameters_folded, summary.gflops_controller],
        "gflops": summary.gflops,
        "scalars": scalars(getattr(net, "module", net)),
    }
    with torch.no_grad(), timestepper.frozen_steps(net):
        return found | {"frozen": net(images.double())}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    found = {}
    for network, build in NETWORKS.items():
        for way, wrap in WAYS.items():
            net = wrap(build())
            found[network, way] = {
                **one_step(net, rank, way),
                **looked_at(net, batch()[0]),
                "refusal": refusal(lambda net=net: timestepper.fold(net)),
                "ahead": refusal(lambda net=net: look_ahead(net, folder)),
                "saving": refusal(lambda net=net: timestepper.save_controllers(net, folder / f"{rank}.safetensors")),
            }
    for parameters, policy in ((False, None), (True, ModuleWrapPolicy({type(blocks(small())[0])})), (True, None)):
        net, device = small().double().eval(), torch.device("cpu")
        wrapped = FullyShardedDataParallel(net, None, None, None, policy, use_orig_params=parameters, device_id=device)
        found["FSDP1", parameters, policy is None] = refusal(lambda net=wrapped: net(batch()[0].double()))
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the threads of gloo outlive the group and can abort an interpreter that ends in its own way


if __name__ == "__main__":
    main(Path(sys.argv[1]))
