"""One of one or two processes on one GPU that train with batch-norm statistics of the whole batch; prints its losses.

gloo, because NCCL refuses two processes on one card; batch norm's own exchange does not know the difference.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F

from timestepper.data import ArrayImages
from timestepper.engine.distributed import Group, wrap
from timestepper.recipe.load import load
from timestepper.runs import build

BATCH, STEPS = 32, 4

if __name__ == "__main__":
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", 0)
    torch.backends.cudnn.allow_tf32 = False
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (BATCH, 32, 32, 3), generator=source, dtype=torch.uint8)
    data = ArrayImages(pixels, torch.randint(10, (BATCH,), generator=source), 10, (0.5,) * 3, (0.25,) * 3)
    recipe = load("smoke/digits-lstm", ["model.name=cifar/resnet14"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        model = build.network(recipe, data, sync_bn=True).to(device)
        network = wrap(model, Group(rank, world, device, active=True))
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        images = pixels.permute(0, 3, 1, 2).float().div(64).sub(2).chunk(world)[rank].to(device)
        labels = data.labels.chunk(world)[rank].to(device)
        losses = []
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(images), labels)
            loss.backward()
            optimiser.step()
            mean = loss.detach() / world
            dist.all_reduce(mean)
            losses.append(mean.item())
        running = [value.double().sum().item() for name, value in model.state_dict().items() if "running" in name]
        kinds = {type(part).__name__ for part in model.modules() if "BatchNorm" in type(part).__name__}
        print(json.dumps({"losses": losses, "running": running, "kinds": sorted(kinds)}), flush=True)
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # the threads of gloo outlive the group and can abort an interpreter that ends in its own way
