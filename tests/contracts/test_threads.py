"""Several threads use one network at once, without a lock: every result is right."""

import copy
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import FAMILIES
from torch.nn import functional as F
from training import batch, bits, fits_its_fold, gradients, same, small

import timestepper

ROUNDS = 12


def backward(net, images, labels):
    """Gradients without ``.grad``, which all threads share."""
    names, parameters = zip(*net.named_parameters(), strict=True)
    found = torch.autograd.grad(F.cross_entropy(net(images), labels), parameters)
    return dict(zip(names, found, strict=True))


@torch.no_grad()
def evaluate(net, images, labels):
    return {"logits": net(images)}


def recompute(net, images, labels):
    from torch.utils.checkpoint import checkpoint

    names, parameters = zip(*net.named_parameters(), strict=True)
    logits = checkpoint(net, images, use_reentrant=False)
    return dict(zip(names, torch.autograd.grad(F.cross_entropy(logits, labels), parameters), strict=True))


def part(net, images, labels):
    return {"features": net.layer1(torch.relu(net.bn1(net.conv1(images)))).detach()}


def fail(net, images, labels):
    with pytest.raises(RuntimeError, match="channels"):
        net(torch.zeros(1, 2, 8, 8))
    return {}


LOOKS = [
    lambda net, *_: bits(net),
    lambda net, *_: bits(copy.deepcopy(net)),
    lambda net, *_: bits(timestepper.fold(net)),
    lambda net, images, labels: evaluate(copy.deepcopy(net), images, labels),
    lambda net, *_: timestepper.step_sizes(net),
]


def test_eight_threads_train_and_evaluate_while_others_look():
    """Every gradient, logit, state dict, copy and fold is what it is when nobody else is there."""
    net = small().eval()
    images, labels = batch(size=2, pixels=16)
    runs = [backward, evaluate, recompute, part, backward, evaluate, fail, part]
    jobs = [*runs, *LOOKS]
    expected = [job(net, images, labels) for job in jobs]
    barrier, wrong = threading.Barrier(len(jobs)), []

    def work(number):
        barrier.wait(60)
        for _ in range(ROUNDS):
            if not same(jobs[number](net, images, labels), expected[number]):
                wrong.append(number)

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(work, number) for number in range(len(jobs))]:
            future.result(timeout=300)
    assert wrong == []


def test_forwards_in_threads_overlap():
    """Two that wait for each other in the middle of a forward both go on: nobody holds a lock."""
    net, barrier = small().eval(), threading.Barrier(2)
    expected = net(batch()[0])

    def wait(*_):
        barrier.wait(60)

    net.layer2.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(net, [batch()[0]] * 2))
    assert all(torch.equal(logits, expected) for logits in found)


@pytest.mark.parametrize("look", [timestepper.evolution_time, timestepper.descriptor_influence])
def test_who_looks_at_a_network_in_a_call_sees_trained_weights(look):
    """Of DenseNet, whose controllers read the very convolutions that take the step sizes."""
    net, found = timestepper.attach(FAMILIES["densenet"]()).eval(), []
    expected, before = look(net), bits(net)
    net.block1[1].register_forward_pre_hook(lambda *_: found.append((look(net), same(bits(net), before))))
    net(torch.zeros(1, 3, 32, 32))
    assert found == [(expected, True)]


def test_one_thread_evaluates_compiled_while_another_trains():
    """Compiled or not, a thread never runs with what another was given: gradients would go missing."""
    net = small().eval()
    images, labels = batch(size=2, pixels=8)
    compiled = torch.compile(net, backend="eager")
    expected = backward(net, images, labels)
    with torch.no_grad():
        compiled(images)
    gradients(compiled, images, labels)
    stop = threading.Event()

    def evaluate_on():
        with torch.no_grad():
            while not stop.is_set():
                compiled(images)

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(evaluate_on) for _ in range(2)]
        try:
            for _ in range(ROUNDS):
                assert same(backward(net, images, labels), expected)
                for name, gradient in gradients(compiled, images, labels).items():
                    torch.testing.assert_close(gradient, expected[name.removeprefix("_orig_mod.")], msg=name)
        finally:
            stop.set()
        for other in others:
            other.result(timeout=60)


def _look(net, results):
    results.put(bool(fits_its_fold(net)))


def test_a_process_forked_in_the_middle_of_a_forward_runs_the_network():
    """The thread that was in it is not there in the new process."""
    net, inside, go_on = small().eval(), threading.Event(), threading.Event()

    def stay(*_):
        if threading.current_thread() is thread:
            inside.set()
            go_on.wait(60)

    net.layer2.register_forward_pre_hook(stay)
    thread = threading.Thread(target=net, args=(batch()[0],))
    thread.start()
    try:
        assert inside.wait(60)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_look, args=(net, results))
        child.start()
        assert results.get(timeout=60)
        child.join(60)
    finally:
        go_on.set()
        thread.join()


def test_copies_of_data_parallel_are_refused():
    replica = small()._replicate_for_data_parallel()
    with pytest.raises(timestepper.errors.WrappedModelError, match="or DistributedDataParallel"):
        replica(batch()[0])
