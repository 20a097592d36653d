"""Many networks in one process, each compiled once per architecture and none left out."""

import pytest
import torch
from torch._dynamo.utils import counters

import timestepper
from timestepper.engine.runtime import Runtime
from timestepper.models import CifarResNet

KINDS = ("none", "lstm", "two_fc", "independent", "fixed(0.5)", "fixed(0.01)")


@pytest.fixture(autouse=True)
def strict():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def compiled(kind, depth=8):
    model = CifarResNet(depth, width=4)
    model = Runtime(torch.device("cpu"), compile=True).place(
        model if kind == "none" else timestepper.attach(model, kind)
    )
    model.compile(dynamic=False, backend="eager")  # the same tracing, without the time that code generation takes
    return model


def use(model, batch=4):
    """One update and one evaluation, as the engine makes them."""
    model.train()
    model(torch.ones(batch, 3, 8, 8)).sum().backward()
    model.eval()
    with torch.no_grad():
        model(torch.ones(2 * batch, 3, 8, 8))


def graphs():
    return counters["stats"]["unique_graphs"]


def test_every_kind_is_compiled_beyond_the_usual_limit():
    for number, kind in enumerate(KINDS, 1):
        use(compiled(kind))
        assert graphs() == 2 * number
    assert not counters["graph_break"]
    use(compiled("none", depth=14))
    use(compiled("none"), batch=6)
    assert graphs() == 2 * len(KINDS) + 4


@pytest.mark.parametrize("kind", ["none", "lstm"])
def test_runs_of_one_architecture_share_their_compiled_code(kind):
    use(compiled(kind))
    for _ in range(3):
        use(compiled(kind))
    assert graphs() == 2
