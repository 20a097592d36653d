import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time
from timestepper.engine.signals import Signals
for number in (signal.SIGHUP, signal.SIGINT):  # whoever runs the tests may ignore them, as nohup and & do
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "in a job" in sys.argv:
    os.environ["SLURM_JOB_ID"] = "1"
signals = Signals().install(leave="early" in sys.argv)
print("ready", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end:
    time.sleep(0.01)
    if signals.save:
        print("save", flush=True)
        signals.save = 0
    if signals.stop and "stubborn" not in sys.argv:
        print("stop", signals.stop, flush=True)
        sys.exit(0)
"""


@pytest.fixture
def process(request):
    extra = getattr(request, "param", [])
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout.readline() == "ready\n"
    yield started
    started.kill()
    started.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_once_sets_a_number(process, number):
    process.send_signal(number)
    output, errors = process.communicate(timeout=300)
    assert output == f"stop {int(number)}\n"
    assert process.returncode == 0
    assert "stopping after this step" in errors


@pytest.mark.parametrize("process", [["early"]], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR2, 140)])
def test_before_there_is_anything_to_save_once_leaves_at_once(process, number, code):
    process.send_signal(number)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == code
    assert (output, errors) == ("", "\nstopped before it began; nothing has changed, and the same command goes on\n")


@pytest.mark.parametrize("process", [["stubborn"]], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_twice_leaves_at_once(process, number, code):
    process.send_signal(number)
    assert process.stderr.readline() == "\n"
    assert "once more to leave at once" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(timeout=300) == code


@pytest.mark.parametrize("process", [["stubborn"]], indirect=True)
def test_a_closed_terminal_and_its_shell_both_say_so_and_the_run_is_saved(process):
    process.send_signal(signal.SIGHUP)
    assert process.stderr.readline() == "\n"
    for number in (signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    assert process.stdout.readline() == "save\n"
    assert process.poll() is None


@pytest.mark.parametrize("process", [["nohup"]], indirect=True)
def test_under_nohup_a_closed_terminal_says_nothing(process):
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "save\n"
    assert process.poll() is None


@pytest.mark.parametrize("process", [["stubborn", "in a job"]], indirect=True)
def test_what_a_cluster_says_again_is_not_meant_to_hurry(process):
    process.send_signal(signal.SIGUSR2)
    assert process.stderr.readline() == "\n"
    for number in (signal.SIGTERM, signal.SIGUSR1):
        process.send_signal(number)
    assert process.stdout.readline() == "save\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
