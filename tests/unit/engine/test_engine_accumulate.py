"""Updates of several parts: the gradients are those of the whole batch, and nothing else changes."""

import contextlib
import math

import pytest
import torch
from tiny_training import EPOCHS, STEPS, TinyBatches, close, end_state, network, trained, training
from torch.nn import functional as F

from timestepper.engine import optimiser
from timestepper.engine.distributed import Group
from timestepper.engine.loop import Interrupted
from timestepper.engine.runtime import Runtime
from timestepper.engine.signals import Signals
from timestepper.engine.step import Row, UpdateStep
from timestepper.errors import DivergedError

QUIET = torch.zeros(2)
PLAIN = {"norm": False, "dropout": 0.0}


def one_update(images, labels, parts, model=None, smoothing=0.0):
    """Gradients and the row of one update."""
    model = model or network(**PLAIN)
    built = optimiser.build([{"params": model.parameters()}], lr=0.1)
    update = UpdateStep(model, model, built, Runtime(torch.device("cpu")), Group(), smoothing, parts)
    (values,) = update(images, labels, QUIET).tolist()
    return [parameter.grad for parameter in model.parameters()], Row(*values), model


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_loss_and_hits_are_those_of_the_whole_batch(parts, smoothing):
    images, labels = next(TinyBatches().epoch(0))
    whole, row, _ = one_update(images, labels, 1, smoothing=smoothing)
    added, same, _ = one_update(images, labels, parts, smoothing=smoothing)
    for ours, theirs in zip(added, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert list(vars(same).values()) == pytest.approx(list(vars(row).values()), rel=1e-6)


def test_every_sample_weighs_the_same_whatever_part_it_is_in():
    images, labels = next(TinyBatches().epoch(0))
    labels[[0, 1, 2, 7]] = -1  # one sample is left in the first part and three in the second
    model = network(**PLAIN)
    F.cross_entropy(model(images), labels, ignore_index=-1).backward()
    added, row, _ = one_update(images, labels, 2)
    for ours, parameter in zip(added, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-5, atol=1e-7)
    assert row.count == 4


def test_each_part_has_statistics_of_its_own():
    images, labels = next(TinyBatches().epoch(0))
    model = network(dropout=0.0)
    twin = network(dropout=0.0)
    one_update(images, labels, 2, model)
    for part in images.chunk(2):
        twin(part)
    assert model[1].num_batches_tracked == 2
    assert torch.equal(model[1].running_mean, twin[1].running_mean)


@pytest.mark.parametrize("place", [0, 7])
def test_a_bad_sample_in_any_part_leaves_the_weights_as_they_were(place):
    images, labels = next(TinyBatches().epoch(0))
    images[place] = math.inf
    _, row, model = one_update(images, labels, 4)
    assert row.bad == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network(**PLAIN).parameters(), strict=True))


def test_a_run_of_parts_ends_as_one_of_whole_batches():
    whole, parts = trained(model=network(**PLAIN)), trained(model=network(**PLAIN), accumulate=4)
    assert parts.step == whole.step == EPOCHS * STEPS
    for ours, theirs in zip(end_state(parts), end_state(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_run_of_parts_goes_on_at_any_step_to_the_same_bits(tmp_path):
    """With batch norm and dropout."""
    whole = trained(tmp_path / "whole", accumulate=4)
    for stop in range(1, EPOCHS * STEPS):
        folder, signals = tmp_path / str(stop), Signals()
        run = training(folder, accumulate=4, signals=signals)
        with contextlib.suppress(Interrupted):
            for step in run.steps():
                signals.stop = 15 if step >= stop else 0
        close(run)
        again = training(folder, accumulate=4)
        assert again.step in (stop, stop + 1)
        again.run()
        close(again)
        assert all(torch.equal(a, b) for a, b in zip(end_state(again), end_state(whole), strict=True))
        assert (folder / "metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_divergence_in_one_part_stops_the_run():
    class LastPart(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = network(**PLAIN), 0

        def forward(self, images):
            self.calls += self.training
            return self.inner(images) * (math.nan if self.calls == 8 else 1.0)

    with pytest.raises(DivergedError, match="step 2: loss nan"):
        training(model=LastPart(), accumulate=4).run()


def test_compiled_parts_train_like_eager_ones():
    eager, compiled = (training(accumulate=2, compile=wanted, model=network(dropout=0.0)) for wanted in (False, True))
    eager.run()
    compiled.runtime.place(compiled.model)
    compiled.run()
    assert compiled.model._compiled_call_impl is not None
    for ours, theirs in zip(end_state(compiled), end_state(eager), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
