"""Are our 3x3 convolutions faster than cuDNN's, and which way to divide the work is best for which layer?

    python benchmarks/convolution.py --json convolution.json

For every distinct layer of CIFAR ResNet-56 that the kernels take: forward, input gradient and weight gradient by cuDNN
(bf16, channels-last, benchmark mode) and by ours, as kernels/convolution.py divides the work and in the ways that
differ from that in one number. A figure is Triton's median of calls recorded in one CUDA graph; data lie in the L2
cache, as they do in training. Every way is compared with float64. One that does not compile or is wrong is printed and
left out. The best go into the tables.

Whole training steps: ``training_step.py`` with runtime.fast_convolutions=true and without.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable

import torch
from engine_runs import parser, write
from torch import Tensor
from torch.nn import functional as F
from triton.testing import do_bench_cudagraph

from timestepper.bench.timing import environment
from timestepper.kernels.convolution import (
    CONVOLVE,
    WEIGHT_GRADIENT,
    Blocks,
    launch_convolve,
    launch_weight_gradient,
    library_gradient,
)

# Side of the image and layers of this kind in ResNet-56, by channels.
LAYERS = {16: (32, 18), 32: (16, 17), 64: (8, 17)}
KINDS = ("forward", "input gradient", "weight gradient")
WORST = 2.5e-3  # relative error; rounding the result to bf16 alone gives 1.7e-3
CHANGES = {
    "pixels": (1, 2),
    "span": (1, 2, 4),
    "together": (1, 2, 3, 9),
    "rows": (32, 64, 128),
    "outputs": (16, 32, 64),
    "warps": (2, 4, 8),
    "held": (False, True),
}


def candidates(kind: str, channels: int) -> list[Blocks]:
    """The table's own entry, and all that differ from it in one number."""
    known, changes = CONVOLVE[channels], CHANGES
    if kind == "weight gradient":
        known = WEIGHT_GRADIENT[channels]
        changes = changes | {"slices": (known.slices // 2, 2 * known.slices), "stages": (1, 2, 3)}
    others = [known._replace(**{name: value}) for name, values in changes.items() for value in values]
    pieces = {one: 3 * -(-(one.pixels + 2) // one.span) for one in (known, *others)}  # of a window
    return [one for one, count in pieces.items() if count % one.together == 0]


def tensors(batch: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, weight and the output's gradient."""
    shape, generator = (batch, channels, *2 * LAYERS[channels][:1]), torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
    place = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    return x.to(**place), weight.to(**place), gradient.to(**place)


def relative_error(found: Tensor, exact: Tensor) -> float:
    """NaN counts as infinite."""
    error = float((found.double() - exact).norm() / exact.norm())
    return error if error == error else float("inf")


def ours(kind: str, x: Tensor, weight: Tensor, gradient: Tensor, blocks: Blocks) -> Tensor:
    if kind == "forward":
        return launch_convolve(x, weight, blocks=blocks)
    if kind == "input gradient":
        return launch_convolve(gradient, weight, backwards=True, blocks=blocks)
    return launch_weight_gradient(gradient, x, weight, blocks=blocks)


def library(kind: str, x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    if kind == "forward":
        return F.conv2d(x, weight, padding=1)
    return library_gradient(gradient, x, weight, 0 if kind == "input gradient" else 1)


def microseconds(call: Callable[[], Tensor]) -> float:
    return 1000 * do_bench_cudagraph(call, rep=1, return_mode="median")


def compile_one(task: tuple[str, int, Blocks]) -> None:
    """In a process of its own: fills Triton's cache on disk. What fails here fails again, and is told of, later."""
    kind, channels, blocks = task
    with contextlib.suppress(Exception):
        ours(kind, *tensors(2, channels), blocks)
        torch.cuda.synchronize()


def measure(kind: str, case: tuple[Tensor, Tensor, Tensor]) -> dict:
    """cuDNN and every configuration on one layer."""
    batch, channels = case[0].shape[:2]
    exact = library(kind, *(tensor.double() for tensor in case))
    base = microseconds(lambda: library(kind, *case))
    base_error = relative_error(library(kind, *case), exact)
    print(f"\n{channels} channels, batch {batch}, {kind}: cuDNN {base:.2f} us, error {base_error:.1e}")
    rows = []
    for blocks in candidates(kind, channels):
        text = " ".join(f"{name} {value}" for name, value in blocks._asdict().items())
        try:
            error = relative_error(ours(kind, *case, blocks), exact)
            if error > max(WORST, 1.1 * base_error):
                raise ArithmeticError(f"error {error:.1e}")
            found = microseconds(lambda: ours(kind, *case, blocks))  # noqa: B023
        except Exception as failure:
            print(f"  failed: {text}: {type(failure).__name__}: {str(failure)[:200]}")
            continue
        rows.append({"blocks": blocks._asdict(), "us": found, "error": error})
        print(f"  {found:7.2f} us  {found / base:6.1%}  error {error:.1e}  {text}", flush=True)
    rows.sort(key=lambda row: row["us"])
    return {"kind": kind, "cudnn_us": base, "cudnn_error": base_error, "ours": rows}


def summary(found: list[dict]) -> None:
    print("\nchannels batch kind               cuDNN     best  share  configuration")
    for case in found:
        head = f"{case['channels']:8d} {case['batch']:5d} {case['kind']:16s} {case['cudnn_us']:7.2f}"
        if not case["ours"]:
            print(head, "   none works")
            continue
        best = case["ours"][0]
        blocks = str(Blocks(**best["blocks"]))
        print(f"{head}  {best['us']:7.2f} {best['us'] / case['cudnn_us']:6.1%}  {blocks}")
    for batch in sorted({case["batch"] for case in found}):
        cases = [case for case in found if case["batch"] == batch and case["ours"]]
        layers = [LAYERS[case["channels"]][1] for case in cases]
        base = sum(n * case["cudnn_us"] for n, case in zip(layers, cases, strict=True)) / 1000
        best = sum(n * case["ours"][0]["us"] for n, case in zip(layers, cases, strict=True)) / 1000
        print(f"all these layers of ResNet-56 in one step at batch {batch}: cuDNN {base:.2f} ms, ours {best:.2f} ms")


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--batches", type=int, nargs="+", default=[128, 64], help="images at once")
    asked.add_argument("--channels", type=int, nargs="+", default=[*LAYERS], choices=LAYERS, help="of the layer")
    asked.add_argument("--jobs", type=int, default=8, help="processes that compile")
    options = asked.parse_args()
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    # One after the other the kernels would take most of the time.
    tasks = {(k, c, way._replace(slices=2)) for k in KINDS for c in options.channels for way in candidates(k, c)}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        pool.map(compile_one, sorted(tasks), chunksize=1)
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    report: dict = {"environment": environment(torch.device("cuda")), "layers": []}
    for channels in options.channels:
        for batch in options.batches:
            case = tensors(batch, channels)
            known = {"channels": channels, "batch": batch}
            report["layers"] += [known | measure(kind, case) for kind in KINDS]
            write(options.json, report)
    summary(report["layers"])
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
