"""Exports that are killed or find no space, and figures that do not depend on how they were computed: T27, T12, T28."""

import functools
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
import runs
import torch
from counts import count
from outcomes import message_of
from processes import command, fork, limit_file_size, ranks
from stopping import drive
from watching import wait_for

from timestepper import data, saving, tensors
from timestepper.adapters import create_model
from timestepper.engine import distributed
from timestepper.files import LEFTOVER
from timestepper.runs.load import restore
from timestepper.stability.robustness import Share, noise

STEPPED = ["smoke/digits-lstm", *runs.SHORT[1:], "run.epochs=1"]


@pytest.fixture(scope="module")
def stepped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with learned step sizes."""
    run = tmp_path_factory.mktemp("stepped") / "run"
    assert drive(runs.train(run, recipe=STEPPED)) is None
    return run


@torch.no_grad()
def test_t27_the_exported_network_is_the_trained_one(tmp_path, stepped_run, cli, figure):
    target = tmp_path / "plain.safetensors"
    assert cli("fold", str(stepped_run), "-o", str(target)).code == 0
    assert cli("verify", str(target)).code == 0
    trained = restore(stepped_run)
    plain = saving.load_folded(create_model("cifar/resnet8", num_classes=10, in_chans=1), target).eval()
    images, _ = next(iter(data.loader(trained.data.test, batch_size=360, seed=0, training=False).epoch(0)))
    attached, folded = trained.model.eval()(images), plain(images)
    difference = float((attached - folded).abs().max())
    assert difference <= 1e-5
    assert torch.equal(attached.argmax(1), folded.argmax(1))
    untrained = create_model("cifar/resnet8", num_classes=10, in_chans=1).eval()
    assert not torch.equal(untrained(images).argmax(1), folded.argmax(1))
    figure(largest_difference=difference)


@count("T27")
def test_t27_a_killed_export_leaves_no_part(times, tmp_path, stepped_run, cli, chance, figure):
    assert cli("fold", str(stepped_run), "-o", str(tmp_path / "whole.safetensors")).code == 0
    whole = (tmp_path / "whole.safetensors").read_bytes()
    folder = tmp_path / "export"
    folder.mkdir()
    target, found = folder / "plain.safetensors", Counter()
    for _ in range(times):
        sight = chance.choice(["*.tmp", "*.safetensors", "*.sha256*"])
        with command(["fold", str(stepped_run), "-o", str(target)], tmp_path) as job:
            wait_for(lambda: any(folder.glob(sight)) or job.poll() is not None, pause=0)  # noqa: B023
            job.kill()
        if target.exists():
            assert target.read_bytes() == whole
        if target.with_name(f"{target.name}.sha256").exists():
            assert tensors.verify(target)
        found[
            " ".join(sorted(LEFTOVER.sub(".tmp", path.name.removeprefix("plain.")) for path in folder.iterdir()))
        ] += 1
        for path in folder.iterdir():
            path.unlink()
    (folder / f"{target.name}.0123456789abcdef.tmp").write_bytes(
        whole[:1000]
    )  # what a kill left half written must not hurt
    assert cli("fold", str(stepped_run), "-o", str(target)).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["plain.safetensors", "plain.safetensors.sha256"]
    assert target.read_bytes() == whole
    figure(kills=times, partial=0, left=found)


def test_t12_no_space_for_an_export(tmp_path, stepped_run, cli):
    target = tmp_path / "plain.safetensors"
    arguments = ["fold", str(stepped_run), "-o", str(target)]
    with command(arguments, tmp_path, prepare=functools.partial(limit_file_size, 100_000)) as job:
        assert job.wait() == 1, job.stderr
        assert re.match(rf"No space left for {target}: need 0\.3\d* MB", message_of(job.stderr))
    assert list(tmp_path.glob("plain*")) == []
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "plain.safetensors"
    assert "a file is in the way" in cli("fold", str(stepped_run), "-o", str(nowhere)).refused()


# -- noise -----------------------------------------------------------------------------------------------------------


def noise_table(run: Path, output: Path, batch_size: int = 90, workers: int = 0, root: Path | None = None) -> None:
    """Error and loss of a run's network under noise, as one of several processes or alone."""
    group = distributed.start(torch.device("cpu"), 60)
    try:
        images = data.open_dataset("folder", root, size=8, resize=8).test
        options = {"seed": 0, "training": False, "rank": group.rank, "world": group.world}
        batches = data.loader(images, batch_size=batch_size, workers=workers, **options).epoch(0)
        share = Share(group.rank, group.world, group.sum)
        model = restore(run).model
        scores = noise(model, batches, (0.0, 0.3, 1.0), draws_each=2, share=share)
    finally:
        distributed.stop()
    if group.rank == 0:
        table = {str(level): [(s.error, s.loss, s.samples) for s in draws] for level, draws in scores.items()}
        output.write_text(json.dumps(table))


def test_t28_noise_does_not_depend_on_how_it_is_computed(tmp_path, folder_run, image_folder, unused_port):
    def table(name: str, world: int = 1, **options: object) -> dict:
        main = functools.partial(noise_table, folder_run, tmp_path / name, root=image_folder, **options)
        with ranks(main, tmp_path, unused_port, world) as jobs:
            assert [job.wait() for job in jobs] == [0] * world, "".join(job.stderr for job in jobs)
        return json.loads((tmp_path / name).read_text())

    reference = table("alone", batch_size=50)
    assert len({error for draws in reference.values() for error, _, _ in draws}) > 1
    assert table("workers", batch_size=50, workers=2) == reference
    for other in (table("batches", batch_size=32), table("two", world=2, batch_size=50)):
        for level, draws in reference.items():
            for (error, loss, samples), (error_, loss_, samples_) in zip(draws, other[level], strict=True):
                assert (error, samples) == (error_, samples_)
                assert loss == pytest.approx(loss_, rel=1e-5)
    job = fork(functools.partial(noise_table, folder_run, tmp_path / "killed", root=image_folder), tmp_path)
    time.sleep(0.2)
    job.kill()
    assert table("killed", batch_size=50) == reference
