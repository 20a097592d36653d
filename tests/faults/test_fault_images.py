"""Image folders that change under a run, lie elsewhere, or hold what cannot be trained on."""

import shutil
from pathlib import Path

import pytest
import runs
from PIL import Image
from stopping import drive

from timestepper.engine.checkpoint import read
from timestepper.engine.rundir import RECIPE

TRAINED = '[[train]]\nbase = "smoke/folder"\noverrides = ["run.epochs=1", "data.workers=0"]\nhours = 0.01\n'  # of a set


@pytest.fixture
def root(tmp_path, image_folder) -> Path:
    return shutil.copytree(image_folder, tmp_path / "root")


def recipe(root: Path) -> list[str]:
    return [*runs.folder_recipe(root), "data.workers=0", "run.epochs=1"]


@pytest.fixture
def stopped(tmp_path, root) -> Path:
    """A run that stopped in its only epoch."""
    run = tmp_path / "run"
    assert drive(runs.train(run, recipe=recipe(root)), signal_after=4) == 5
    return run


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}


def added(folder: Path) -> str:
    shutil.copy(folder / "000.png", folder / "zzz.png")
    return "images to train on 200 -> 201"


def removed(folder: Path) -> str:
    (folder / "000.png").unlink()
    return "images to train on 200 -> 199"


def renamed(folder: Path) -> str:
    (folder / "000.png").rename(folder / "zzz.png")
    return "other images: names and sizes '"


def replaced(folder: Path) -> str:
    Image.new("RGB", (50, 50)).save(folder / "000.png")
    return "other images: bytes "


@pytest.mark.parametrize("change", [added, removed, renamed, replaced])
def test_a_run_does_not_go_on_with_other_images(change, root, stopped, cli):
    said = change(root / "train" / "3")
    before = files(stopped)
    message = cli(*runs.train(stopped, recipe=recipe(root))).refused()
    assert f"{stopped} was begun with other images: " in message
    assert said in message
    assert "another --run-dir, or --override" in message
    assert files(stopped) == before
    outcome = cli(*runs.train(stopped, "--override", recipe=recipe(root)))
    assert outcome.code == 0, outcome.err
    said = "another number of images: going on at the beginning of epoch 1, now step 0"
    assert (said in outcome.out) == (change in (added, removed))
    assert ("going on at step 5 of 10" in outcome.out) == (change in (renamed, replaced))
    assert runs.newest(stopped)["step"] == 200 // 20 - (change is removed)


def test_a_folder_of_images_may_be_moved(root, stopped, tmp_path, cli, image_folder):
    assert drive(runs.train(tmp_path / "whole", recipe=recipe(image_folder))) is None
    moved = root.rename(tmp_path / "moved")
    assert cli(*runs.train(stopped, recipe=recipe(moved))).code == 0
    assert runs.differing(stopped, tmp_path / "whole") == []
    assert "nothing to do" in cli(*runs.train(stopped, recipe=recipe(image_folder))).out


def test_a_finished_run_is_not_that_of_another_folder_and_says_so_when_evaluated_there(
    root, folder_run, tmp_path, cli, image_folder
):
    run = runs.copy(folder_run, tmp_path / "run")
    before = files(run)
    removed(root / "val" / "3")
    message = cli(*runs.train(run, recipe=runs.folder_recipe(root))).refused()
    assert f"{run} is finished, and was trained with other images: images to test on 100 -> 99" in message
    (run / RECIPE).write_text((run / RECIPE).read_text().replace(str(image_folder), str(root)))
    outcome = cli("evaluate", str(run))
    assert outcome.code == 0
    assert f"warning: {run} was trained with other images: images to test on 100 -> 99" in outcome.err
    (run / RECIPE).write_bytes(before[run / RECIPE])
    for still in (image_folder, tmp_path / "gone"):
        assert "nothing to do" in cli(*runs.train(run, recipe=runs.folder_recipe(still))).out
    assert files(run) == before


def test_a_bad_image_to_test_on_does_not_cost_the_epoch(root, tmp_path, cli, image_folder):
    bad, run = root / "val" / "3" / "000.png", tmp_path / "run"
    bad.write_bytes(b"bad")
    assert "val/3/000.png" in cli(*runs.train(run, recipe=recipe(root))).refused()
    assert runs.newest(run)["step"] == 10
    shutil.copy(image_folder / "val" / "3" / "000.png", bad)
    outcome = cli(*runs.train(run, "--override", recipe=recipe(root)))
    assert outcome.code == 0, outcome.err
    assert "going on with other images: " in outcome.out
    assert "going on at step 10 of 10" in outcome.out
    assert drive(runs.train(tmp_path / "whole", recipe=recipe(image_folder))) is None
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_sweep_does_not_take_the_run_of_another_folder_for_its_own(root, tmp_path, cli):
    sweep = ["sweep", *recipe(root), "--seeds", "0", "--out", str(tmp_path / "runs")]
    assert cli(*sweep).code == 0
    assert "already finished" in cli(*sweep).out
    renamed(root / "val" / "3")
    outcome = cli(*sweep)
    assert outcome.code != 0
    assert "was trained with other images: names and sizes '" in outcome.out


def test_a_sweep_of_jobs_and_one_that_skips_by_record_look_at_the_folder_too(root, tmp_path, cli):
    change, results = f"data.root={root}", tmp_path / "results"
    sweep = ("sweep", "smoke/folder", change, "run.epochs=1", "--out", tmp_path / "runs")
    assert cli(*sweep, "--results", results).code == 0
    assert "1 of 1 runs have a record" in cli(*sweep, "--results", results).out
    next(root.rglob("*.png")).unlink()
    outcome = cli(*sweep, "--cluster", "local")
    assert outcome.code == 2
    assert "is finished, and was trained with other images: " in outcome.err
    assert not (tmp_path / "runs" / "jobs").exists()
    skipped = cli(*sweep, "--results", results)
    assert "have a record" not in skipped.out
    assert "was trained with other images: " in skipped.out
    shutil.rmtree(root)  # there is nothing to compare any more
    assert "1 of 1 runs have a record" in cli(*sweep, "--results", results).out


def test_the_runs_of_a_set_are_not_those_of_another_image_folder(root, tmp_path, cli):
    (tmp_path / "mine.toml").write_text(f'set = "mine"\ntitle = "A folder"\n{TRAINED}')
    places = ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    command = ["reproduce", str(tmp_path / "mine.toml"), "--data-root", root, *places]

    def listed():
        return " ".join(cli(*command, "--list").out.split())

    assert cli(*command).code == 0
    assert "1 of 1 runs done" in listed()
    next((root / "val").rglob("*.png")).unlink()
    assert "missing, its folder holds another run" in listed()
    assert "the record of a run with other settings or images; move" in cli(*command).err
    assert cli(*command[:-1], tmp_path / "other").code == 0
    assert len(list((tmp_path / "results").glob("*.json"))) == 2
    shutil.rmtree(root)  # there is nothing to compare any more
    assert "1 of 1 runs done" in listed()


def test_a_finished_run_is_measured_where_its_images_are_now(root, tmp_path, cli):
    places = ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    command = ["reproduce", str(tmp_path / "mine.toml"), *places, "--data-root"]
    for measures in ("", 'measure = ["noise"]\n'):
        (tmp_path / "mine.toml").write_text(f'set = "mine"\ntitle = "A folder"\n{measures}{TRAINED}')
        outcome = cli(*command, root)
        assert outcome.code == 0, outcome.err
        root = root.rename(tmp_path / "moved")
    assert "noise" in next((tmp_path / "results").glob("*.json")).read_text()


def test_a_run_of_an_older_version_goes_on(root, stopped, cli):
    """Its checkpoints do not say what the images were."""
    import torch

    for path in runs.checkpoints(stopped):
        state = read(path)
        assert state.pop("images")["images to train on"] == 200
        torch.save(state, path)
    renamed(root / "train" / "3")
    outcome = cli(*runs.train(stopped, recipe=recipe(root)))
    assert outcome.code == 0, outcome.err
    assert runs.newest(stopped)["images"]["images to train on"] == 200


def test_what_a_gpu_has_decoded_is_evaluated_without_one(folder_run, tmp_path, image_folder, cli):
    run = runs.copy(folder_run, tmp_path / "run")
    there = (run / RECIPE).read_text()
    assert 'decode = "cpu"' in there
    (run / RECIPE).write_text(there.replace('decode = "cpu"', 'decode = "gpu"'))
    outcome = cli("evaluate", str(run), "--device", "cpu", "--json")
    assert outcome.code == 0, outcome.err
    told = "data.decode=gpu, but there is no GPU: images are decoded on the CPU"
    assert [line for line in outcome.err.splitlines() if "decode" in line] == [f"warning: {told}"]
    assert outcome.out == cli("evaluate", str(runs.copy(folder_run, tmp_path / "other" / "run")), "--json").out.replace(
        "other/", ""
    )
    train = runs.train(
        run, "runtime.device=cpu", "data.decode=gpu", "--override", recipe=runs.folder_recipe(image_folder)
    )
    message = cli(*train, "run.epochs=4").refused()
    assert "the device is no GPU; set data.decode=cpu, with which a run goes on too" in message


def test_names_of_bad_files_take_one_line_each(root, cli):
    for name in ("two\nlines.png", "one.png"):
        (root / "train" / "3" / name).write_bytes(b"")
    outcome = cli("check-data", "folder", "--root", str(root))
    outcome.refused()
    assert outcome.out.splitlines() == [
        f"{root}/train/3/{name}: not an image of a known format" for name in ("one.png", "two\\nlines.png")
    ]


def test_parts_of_one_image_are_refused_where_batch_norm_has_nothing_to_average(tmp_path, cli):
    """Pixels of 8 x 8 become one in a ResNet-18; in the small networks for CIFAR four are left."""
    recipe = [*runs.DIGITS, "data.batch_size=2", "data.accumulate=2", "model.name=timm/resnet18"]
    message = cli(*runs.train(tmp_path / "run", recipe=recipe)).refused()
    assert message.startswith("timm/resnet18 cannot be trained on one image at a time (Expected more than 1 value")
    assert "data.batch_size 2 is too small for data.accumulate=2" in message
    assert not (tmp_path / "run").exists()


def test_images_that_the_network_does_not_take_are_refused(tmp_path, cli):
    recipe = ["study/vit", "data.name=digits", "data.augment=none", "run.epochs=1", "schedule.warmup_epochs=0"]
    message = cli(*runs.train(tmp_path / "run", recipe=recipe)).refused()
    assert message.startswith(
        "timm/vit_tiny_patch16_224 does not run on the images of digits, (1, 8, 8) (AssertionError"
    )
    assert message.endswith("build it for that size (model.options, where its constructor takes one)")
    assert not (tmp_path / "run").exists()


def test_more_workers_than_any_machine_feeds_are_refused(tmp_path, cli):
    assert "256" in cli(*runs.train(tmp_path / "run", "data.workers=1024")).refused()
