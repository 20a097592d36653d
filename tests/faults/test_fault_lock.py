"""One run directory, one run: T15."""

import os
import signal

import runs
from conftest import message_of
from counts import count
from processes import command, fresh_command
from watching import wait_for


@count("T15")
def test_t15_a_second_start_is_refused_and_a_kill_frees_the_folder(times, tmp_path, image_folder, within, figure):
    run, slowest = tmp_path / "run", 0.0
    arguments = runs.train(run, "run.epochs=1000", recipe=runs.folder_recipe(image_folder))
    for number in range(times):
        before = len(runs.log(run))
        with command(arguments, tmp_path) as first:
            wait_for(lambda: len(runs.log(run)) > before or first.poll() is not None)  # noqa: B023
            assert first.poll() is None, first.stderr
            with within(2) as watch, fresh_command(arguments, tmp_path) as second:
                assert second.wait() == 2
            assert f"{run} is in use by process {first.pid}" in message_of(second.stderr)
            assert first.poll() is None
            workers = first.offspring()
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            if number == times - 1:
                wait_for(lambda: not first.survivors(), 10)  # the loader's workers do not stay behind
                assert workers
        slowest = max(slowest, watch.seconds)
    assert runs.state_of(run) == "killed"
    figure(refused=times, seconds=slowest)
