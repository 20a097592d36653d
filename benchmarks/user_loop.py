"""What does one line in a training loop cost? Step time of attached over plain in an ordinary loop, and inference.

    python benchmarks/user_loop.py timm/resnet18:256:128 timm/resnet50:128:224 cifar/resnet56:128:32

A case is MODEL:BATCH:PIXELS. The loop is what people write: bf16 autocast, cross entropy, SGD with momentum, no engine
of ours; eager, with torch.compile(net), or with CUDA graphs as well (mode="reduce-overhead"). All variants are timed in
turn, so ratios are of one run. `fixed(0.5)` is the bare mechanism.
"""

import copy
from collections.abc import Callable

import torch
from engine_runs import parser, write
from torch import nn
from torch.nn import functional as F

import timestepper
from timestepper.bench import peers
from timestepper.bench.timing import Timing, environment, interleaved

MODES: dict[str, Callable[[nn.Module], Callable]] = {
    "eager": lambda net: net,
    "compile": torch.compile,
    "graphs": lambda net: torch.compile(net, mode="reduce-overhead"),
}


def network(model: str, variant: str, device: torch.device) -> nn.Module:
    return peers.build(variant, model, 10 if model.startswith("cifar/") else 1000).to(device)


def training_step(net: nn.Module, batch: int, pixels: int, device: torch.device, mode: str) -> Callable[[], None]:
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    labels = torch.randint(10, (batch,), device=device)
    call = MODES[mode](net)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(call(images), labels)
        loss.backward()
        optimiser.step()

    return step


def inference(model: str, batch: int, pixels: int, device: torch.device) -> dict[str, Callable[[], None]]:
    """Plain, attached as it is, attached with its steps frozen, folded."""
    attached = network(model, "lstm", device).eval()
    folded, frozen = timestepper.fold(attached), copy.deepcopy(attached)
    images = torch.randn(batch, 3, pixels, pixels, device=device)
    holding = timestepper.frozen_steps(frozen)
    holding.__enter__()
    nets = {"plain": network(model, "plain", device).eval(), "attached": attached, "frozen": frozen, "folded": folded}

    def forward(net: nn.Module) -> Callable[[], None]:
        def call(held: object = holding) -> None:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
                net(images)

        return call

    return {name: forward(net) for name, net in nets.items()}


def show(title: str, timings: dict[str, Timing]) -> dict:
    print(title)
    for name, t in timings.items():
        print(f"  {name:12s} {t.ms.median:9.3f} ms, ratio {t.ratio.median:.4f} [{t.ratio.low:.4f}, {t.ratio.high:.4f}]")
    return {
        name: {"ms": t.ms.median, "ratio": t.ratio.median, "quartiles": [t.ratio.low, t.ratio.high]}
        for name, t in timings.items()
    }


def main() -> None:
    found = parser(__doc__)
    found.add_argument("cases", nargs="*", default=["cifar/resnet56:128:32"], help="MODEL:BATCH:PIXELS")
    found.add_argument("--modes", nargs="*", choices=MODES, default=["eager"], help="how the network is called")
    found.add_argument("--variants", nargs="*", default=["plain", "again", "fixed(0.5)", "lstm"], help="plain first")
    found.add_argument("--no-inference", action="store_true", help="training steps only")
    found.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    found.add_argument("--seconds", type=float, default=8, help="timing of one case and mode, without building")
    options = found.parse_args()
    device = torch.device(options.device)
    report: dict = {"environment": environment(device), "cases": []}
    for text in options.cases:
        model, batch, pixels = text.rsplit(":", 2)
        shape = (int(batch), int(pixels), device)
        case: dict = {"model": model, "batch": int(batch), "pixels": int(pixels)}
        for mode in options.modes:
            torch._dynamo.reset()
            steps = {v: training_step(network(model, v, device), *shape, mode) for v in options.variants}
            for step in steps.values():
                for _ in range(5):
                    step()
            case[mode] = show(f"{text} {mode}", interleaved(steps, device, seconds=options.seconds))
            del steps
        if not options.no_inference:
            calls = inference(model, *shape)
            case["inference"] = show(f"{text} inference", interleaved(calls, device, seconds=options.seconds / 2))
        report["cases"].append(case)
        write(options.json, report)


if __name__ == "__main__":
    main()
