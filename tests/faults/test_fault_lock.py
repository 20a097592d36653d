"""One run directory, one run: T15."""

import os
import signal

import runs
from counts import count
from outcomes import errors_of, message_of
from processes import command, fresh_command, torchrun
from watching import Watch, alive, wait_for


def test_t15_torchrun_in_a_folder_in_use_gives_up_at_once(tmp_path, figure):
    run = tmp_path / "run"
    with command(runs.train(run, "run.epochs=1000"), tmp_path) as first:
        wait_for(lambda: runs.logged_steps(run) or first.poll() is not None)
        # The second rank is still on its way to the first one when that leaves; nobody may wait for it.
        with Watch() as watch, torchrun(runs.train(run, "run.epochs=1000"), tmp_path) as second:
            assert second.wait() == 1
            assert f"{run} is in use by process {first.pid}" in errors_of(second.stderr)[0]
            assert second.survivors() == []
        assert first.poll() is None
    figure(seconds=watch.seconds)


@count("T15")
def test_t15_a_second_start_is_refused_and_a_kill_frees_the_folder(times, tmp_path, image_folder, figure):
    run, slowest, workers = tmp_path / "run", 0.0, set()
    arguments = runs.train(run, "run.epochs=1000", recipe=runs.folder_recipe(image_folder))
    for number in range(times):
        before = len(runs.log(run))
        with command(arguments, tmp_path) as first:
            wait_for(lambda: len(runs.log(run)) > before or first.poll() is not None)  # noqa: B023
            assert first.poll() is None, first.stderr
            with Watch() as watch, fresh_command(arguments, tmp_path) as second:
                assert second.wait() == 2
            assert f"{run} is in use by process {first.pid}" in message_of(second.stderr)
            assert first.poll() is None
            workers.update(first.offspring())
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            if number == times - 1:
                wait_for(lambda: not any(map(alive, workers)))  # the loader's workers do not stay behind
        slowest = max(slowest, watch.seconds)
    assert workers or times < 10
    assert runs.state_of(run) == "killed"
    figure(refused=times, seconds=slowest)
