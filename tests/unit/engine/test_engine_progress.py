import io

import pytest
from rich.console import Console

from timestepper.engine.progress import Display


def show(display):
    display.start(0, 100)
    display.step(1, 1, 2.5, 0.25, 64)
    display.epoch(1, 10, {"train loss": 2.5, "test error": 0.5}, {"dt layer1": 0.48})
    display.step(2, 2, 2.25, 0.375, 64)
    display.say("a note with [brackets]")
    display.stop()


def test_one_plain_line_per_epoch_where_there_is_no_terminal(capsys):
    show(Display())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/10  train loss 2.5000  test error 50.00%  dt layer1 0.480  ")
    assert lines[0].endswith(" images/s")
    assert lines[1] == "a note with [brackets]"


def test_quiet_shows_nothing_but_warnings_go_to_stderr(capsys):
    show(Display(quiet=True))
    Display(quiet=True).warn("x")
    assert capsys.readouterr() == ("", "")
    Display().warn("x")
    assert capsys.readouterr() == ("", "warning: x\n")


@pytest.mark.parametrize(
    "part", ["epoch 2", "step 2/100", "loss 2.250", "accuracy 37.5%", "images/s", "dt layer1 0.480"]
)
def test_a_terminal_gets_a_live_line(part):
    display, screen = Display(), io.StringIO()
    display._console = Console(file=screen, force_terminal=True, width=200)
    show(display)
    assert part in screen.getvalue()
