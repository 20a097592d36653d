"""timestepper bench: what a controller costs, beside what one would use instead."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    model: Annotated[str, typer.Option(help="LIBRARY/MODEL")] = "cifar/resnet56",
    batch: Annotated[int, typer.Option(min=2, help="images in a batch")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    mode: Annotated[list[str] | None, typer.Option(help="eager, graph, compiled, compiled+graph; repeat it")] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="plain, again, literal, a controller, a peer; repeat it")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16; by default bf16 on CUDA")] = None,
    channels_last: Annotated[bool | None, typer.Option(help="by default for 224 pixels on CUDA")] = None,
    pixels: Annotated[int | None, typer.Option(min=1, help="by default 32 for cifar/, else 224")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="how often each variant is timed, in turn with plain")] = 15,
    seconds: Annotated[float, typer.Option(min=0.01, help="of timing for each pair")] = 4.0,
    json: Annotated[
        Path | None, typer.Option("--json", help="write all figures with card, versions and commit")
    ] = None,
    commit: Annotated[str | None, typer.Option(help="commit to write down where git cannot tell")] = None,
) -> None:
    """Compare training, inference, memory and compile time of plain, literal, ours and peers in one run."""
    from timestepper.bench import compare
    from timestepper.bench.steps import MODES, Settings
    from timestepper.engine.runtime import PRECISIONS, choose_device
    from timestepper.errors import UnknownNameError
    from timestepper.files import prepare_file, write_json
    from timestepper.sites import input_pixels

    chosen = choose_device(device)
    cuda = chosen.type == "cuda"
    modes = tuple(mode or compare.MODES_ON[chosen.type])
    precision = precision or ("bf16" if cuda else "float32")
    for name, known in ((precision, PRECISIONS), *((one, MODES) for one in modes)):
        if name not in known:
            raise UnknownNameError(f"unknown {name!r}; known are {', '.join(known)}")
    if not cuda and any("graph" in one for one in modes):
        raise UnknownNameError(
            f"--mode {' '.join(modes)}: a CUDA graph needs a CUDA device; here are eager and compiled"
        )
    if json:
        prepare_file(json)  # before minutes of measuring
    small = model.startswith("cifar/")
    settings = Settings(
        model=model,
        batch=batch,
        device=chosen,
        precision=precision,
        channels_last=cuda and not small if channels_last is None else channels_last,
        modes=modes,
        variants=tuple(variant) if variant else compare.VARIANTS,
        pixels=pixels or input_pixels(model),
        classes=10 if small else 1000,
        rounds=rounds,
        seconds=seconds,
    )
    result = compare.compare(settings, say=lambda line: typer.echo(line, err=True), commit=commit)
    if json:
        write_json(json, result)
    compare.show(result)
