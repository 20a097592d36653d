import re

import pytest

from timestepper.engine.progress import Display


def show(display):
    display.start(0, 100)
    display.step(1, 1, 2.5, 0.25, 64)
    display.epoch(1, 10, {"train loss": 2.5, "test error": 0.5}, {"dt layer1": 0.48})
    display.step(2, 2, 2.25, 0.375, 64)
    display.tell("a note with [brackets]")
    display.stop()


def test_one_plain_line_per_epoch_where_there_is_no_terminal(capsys):
    show(Display())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/10  train loss 2.5000  test error 50.00%  dt layer1 0.480  ")
    assert lines[0].endswith(" images/s")
    assert lines[1] == "a note with [brackets]"


@pytest.fixture
def passed(monkeypatch):
    """Seconds on a clock that stands still unless told."""
    seconds = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    return seconds


def test_the_speed_of_an_epoch_is_that_of_its_own_steps(passed, capsys):
    display = Display()
    display.start(0, 100)
    for epoch, seconds in ((1, 0.01), (2, 0.02)):
        for step in range(1, 11):
            passed[0] += seconds
            display.step(step, epoch, 2.5, 0.25, 64)
        passed[0] += 3.0  # an evaluation
        display.epoch(epoch, 2, {}, {})
    assert re.findall(r"[\d,]+ images/s", capsys.readouterr().out) == ["6,400 images/s", "3,200 images/s"]


def test_batches_loaded_while_the_first_step_compiles_do_not_count_as_fast(passed, capsys):
    """64 images take a second to load; nine batches are there when the first step has taken its ten seconds."""
    display = Display()
    display.start(0, 20)
    for step in range(1, 21):
        passed[0] += 10.0 if step == 1 else 0.01 if step <= 10 else 1.0
        display.step(step, 1, 2.5, 0.25, 64)
    display.epoch(1, 1, {}, {})
    (speed,) = re.findall(r"([\d,]+) images/s", capsys.readouterr().out)
    assert int(speed) <= 64


def test_quiet_shows_nothing_but_warnings_go_to_stderr(capsys):
    show(Display(quiet=True))
    Display(quiet=True).warn("x")
    assert capsys.readouterr() == ("", "")
    Display().warn("x")
    assert capsys.readouterr() == ("", "warning: x\n")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_gets_live_lines_with_everything_in_them(width, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("COLUMNS", str(width))
    display = Display()
    display.columns({f"dt layer{stage}": 0.48 for stage in (1, 2, 3, 4)})
    display.start(0, 234_500)
    display.step(123_456, 158, 2.25, 0.375, 64)
    display.stop()
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out).split())
    for part in ("epoch 158 step 123456/234500", "loss 2.250", "accuracy 37.5%", "images/s", "dt layer4 0.480"):
        assert part in shown
    assert re.search(r"\d:\d\d:\d\d|-:--:--", shown)  # time left
    assert "…" not in shown
