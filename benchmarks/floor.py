"""How far is a step from the floor? Fewest bytes and operations of each case, and the time at this device's ceilings.

    python benchmarks/floor.py cifar/resnet56:64 timm/resnet50:256

``timestepper bench`` prints the same floor beside the measured times. See timestepper/bench/floor.py for what counts.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

from timestepper.bench import peers
from timestepper.bench.floor import measure_ceilings, training_floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["cifar/resnet56:64"], help="MODEL:BATCH")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="bf16", help="of features and weights")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where the ceilings are measured"
    )
    options = parser.parse_args()
    bf16 = options.precision == "bf16"
    ceilings = measure_ceilings(torch.device(options.device), torch.bfloat16 if bf16 else torch.float32)
    print(f"ceilings: {ceilings.bytes_per_s / 1e9:.0f} GB/s, {ceilings.operations_per_s / 1e12:.2f} TFLOP/s")
    for text in options.cases:
        model, _, batch = text.rpartition(":")
        classes, pixels = (10, 32) if model.startswith("cifar/") else (1000, 224)
        for variant in ("plain", "lstm"):
            network = peers.build(variant, model, classes)
            found = training_floor(network, int(batch), (3, pixels, pixels), 2 if bf16 else 4)
            print(
                f"{model} batch {batch} {variant:5s}: {found.features / 1e9:8.3f} GB features, "
                f"{found.weights / 1e9:7.3f} GB weights, {found.operations / 1e12:7.3f} TFLOP, "
                f"floor {found.milliseconds(ceilings):8.3f} ms"
            )


if __name__ == "__main__":
    main()
