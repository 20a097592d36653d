"""Loader workers that die, a small shared memory, images that cannot be read: T21, T22."""

import os
import subprocess
import time

import pytest
import runs
from counts import count
from outcomes import message_of
from processes import command, fresh_command
from watching import Watch, children, kill, wait_for


@count("T21")
def test_t21_a_worker_killed(times, tmp_path, folder_run, image_folder, chance, figure):
    recipe, kills, ended, slowest = runs.folder_recipe(image_folder), 0, 0, 0.0
    while kills < times or not ended:
        run = tmp_path / f"run-{ended}"
        with command(runs.train(run, recipe=recipe), tmp_path) as job:
            workers = []
            if kills < times:
                wait_for(lambda: "step" in job.stdout or runs.logged_steps(run), pause=0.001)  # noqa: B023
                time.sleep(chance.uniform(0, 0.3))
                workers = children(job.pid)
            with Watch() as watch:
                for pid in workers[:1]:
                    kill(pid)
                code = job.wait()
            if code == 0:  # there was no worker, or none was needed any more
                assert runs.differing(run, folder_run) == []
                ended += 1
                continue
            assert code == 1
            assert "fewer workers" in message_of(job.stderr)
            assert runs.state_of(run) == "failed"
            assert runs.newest(run)["step"] + 3 >= (runs.logged_steps(run) or [0])[-1]
        kills += 1
        slowest = max(slowest, watch.seconds)
    figure(kills=kills, runs=ended, seconds=slowest)


def test_t21_a_small_shared_memory_is_enough(tmp_path, image_folder, figure):
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", small, "sh")
    if os.geteuid() or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("a small /dev/shm needs root and the right to mount")
    run = tmp_path / "run"
    arguments = runs.train(run, "data.size=48", "data.resize=48", recipe=runs.folder_recipe(image_folder))
    with fresh_command(arguments, tmp_path, before=inside) as job, Watch() as watch:
        assert job.wait() == 0, job.stdout + job.stderr
    figure(seconds=watch.seconds)


@pytest.mark.parametrize("workers", [0, 2])
def test_t22_training_names_the_bad_image(workers, tmp_path, image_folder):

    copy = runs.copy(image_folder, tmp_path / "copy")
    bad = copy / "train" / "7" / "005.png"
    bad.write_bytes(bad.read_bytes()[:40])
    run, recipe = tmp_path / "run", runs.folder_recipe(copy)
    arguments = runs.train(run, f"data.workers={workers}", recipe=recipe)
    with command(arguments, tmp_path) as job:
        assert job.wait() == 2, job.stdout + job.stderr
        assert message_of(job.stderr).startswith(f"{bad}: cannot be read as an image")
    bad.write_bytes((image_folder / "train" / "7" / "005.png").read_bytes())
    with command(arguments, tmp_path) as job:  # a whole image in its place, and so not the images that it began with
        assert job.wait() == 2, job.stderr
        assert "was begun with other images: bytes " in message_of(job.stderr)
    with command([*arguments, "--override"], tmp_path) as job:
        assert job.wait() == 0, job.stderr
