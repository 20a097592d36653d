"""The loader of image files: the same batches from any number of workers, and what happens to those workers."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import equal, joined
from digit_folder import write_digit_folder
from PIL import Image
from torchvision.transforms import v2
from watching import alive, children, wait_for

from timestepper.data import Augment, loader, open_dataset
from timestepper.data.order import epoch_order, mix
from timestepper.data.windows import View
from timestepper.data.workers import Workers
from timestepper.errors import DataError, LoaderError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_digit_folder(tmp_path_factory.mktemp("digits"), per_class=12)


@pytest.fixture(scope="module")
def folder(root):
    return open_dataset("folder", root, size=16)


def make(images, **options):
    options = {"batch_size": 12, "seed": 5, "training": True, "augment": "resized_crop"} | options
    return loader(images, **options)


def batches(images, epoch=0, first_step=0, **options):
    return list(make(images, **options).epoch(epoch, first_step))


@pytest.fixture(scope="module")
def expected(folder):
    return batches(folder.train)


def test_what_the_loader_says_of_itself(folder, expected):
    training = make(folder.train, world=2, rank=1)
    assert (training.samples, training.steps, training.local_batch) == (120, 10, 6)
    assert training.input_shape == (3, 16, 16)
    images, labels = expected[0]
    assert images.shape == (12, 3, 16, 16)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_batches(folder, expected, workers):
    assert equal(batches(folder.train, workers=workers), expected)


@pytest.mark.timeout(300)
def test_one_worker_is_given_more_than_its_answers_have_room_for(root):
    """Four batches of 4,096 images: a trainer that only sends would wait for a worker that waits for it."""
    path = next(path for path in root.rglob("*") if path.is_file())
    workers = Workers(1, View(8, 8), 4096)
    jobs = [[(str(path), seed) for seed in range(4096)] for _ in range(4)]
    assert len(list(workers.batches(jobs))) == 4
    workers.close()


def test_every_sample_is_what_its_own_seed_makes_of_it(folder, expected):
    """torchvision's transforms, one image at a time, each from a fresh seed of (seed, epoch, index)."""
    varied = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
    finish = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(folder.mean, folder.std)])
    order = epoch_order(120, seed=5, epoch=0)
    images = torch.cat([images for images, _ in expected])
    assert torch.equal(torch.cat([labels for _, labels in expected]), folder.train.labels[order])
    for place, sample in enumerate(order.tolist()):
        torch.manual_seed(mix("augment", 5, 0, sample))
        reference = finish(varied(Image.open(folder.train.paths[sample]).convert("RGB")))
        torch.testing.assert_close(images[place], reference, atol=2e-6, rtol=1e-6)


def test_evaluation_resizes_and_crops_the_centre(tmp_path):
    """Two wide images, so that the crop shows; padded up to the batch with labels of -1."""
    pixels = np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)
    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / split / label / "one.png")
    dataset = open_dataset("folder", tmp_path, size=14, resize=20)
    ((images, labels),) = batches(dataset.test, training=False, batch_size=5)
    resized = Image.fromarray(pixels).resize((30, 20), Image.Resampling.BILINEAR).crop((8, 3, 22, 17))
    reference = v2.functional.normalize(v2.functional.to_image(resized) / 255, dataset.mean, dataset.std)
    torch.testing.assert_close(images[:2], reference.expand(2, 3, 14, 14), atol=2e-6, rtol=1e-6)
    assert labels.tolist() == [0, 1, -1, -1, -1]
    assert torch.isfinite(images).all()


def test_training_without_augmentation_and_with_a_flip_only(folder):
    still = batches(folder.train, augment="none")
    flipped = batches(folder.train, augment=Augment(flip=True))
    for (plain, _), (mirrored, _) in zip(still, flipped, strict=True):
        for one, other in zip(plain, mirrored, strict=True):
            assert torch.equal(one, other) or torch.equal(one.flip(2), other)
    assert not equal(still, flipped)
    with pytest.raises(DataError, match="augment with pad is for images held in memory"):
        batches(folder.train, augment="crop_flip")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generators_are_left_alone(folder, workers):
    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    batches(folder.train, workers=workers)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_epochs_and_seeds_differ_in_order_and_in_augmentation(folder, expected):
    assert equal(batches(folder.train), expected)
    for other in (batches(folder.train, epoch=1), batches(folder.train, seed=6)):
        assert not equal(other, expected)

    def sample(number, seed, epoch):
        place = (epoch_order(120, seed, epoch) == number).nonzero().item()
        return batches(folder.train, seed=seed, epoch=epoch)[place // 12][0][place % 12]

    first = sample(7, 5, 0)
    assert torch.equal(first, sample(7, 5, 0))
    assert not torch.equal(first, sample(7, 5, 1))
    assert not torch.equal(first, sample(7, 6, 0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first_step", [1, 9, 10])
def test_starting_late_equals_skipping(folder, expected, first_step, workers):
    assert equal(batches(folder.train, first_step=first_step, workers=workers), expected[first_step:])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("training", [True, False])
def test_ranks_together_see_the_batches_of_one(folder, world, training):
    options = {"training": training, "batch_size": 28}
    whole = batches(folder.train, **options)
    shares = [batches(folder.train, rank=rank, world=world, **options) for rank in range(world)]
    assert equal(joined(shares), whole)
    if not training:
        labels = torch.cat([labels for _, labels in whole])
        assert labels[labels >= 0].tolist() == folder.train.labels.tolist()


def test_channels_last_changes_the_layout_and_no_value(folder, expected):
    last = batches(folder.train, memory_format=torch.channels_last)
    assert equal(last, expected)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_gpu_gives_the_bits_of_the_cpu(folder, expected, workers):
    on_gpu = batches(folder.train, device="cuda", workers=workers)
    assert all(images.is_cuda and labels.is_cuda for images, labels in on_gpu)
    assert equal([(images.cpu(), labels.cpu()) for images, labels in on_gpu], expected)


# -- the workers -----------------------------------------------------------------------------------------------------


def running(images, workers=2):
    """An epoch long enough that its workers are busy, after its first batch, and their process ids."""
    before = children(os.getpid())
    steps = make(images, batch_size=2, workers=workers).epoch(0)
    next(steps)
    return steps, [child for child in children(os.getpid()) if child not in before]


def test_workers_are_no_forks_of_the_trainer(folder):
    """A fork would take along CUDA graphs, which it cannot dispose of, and all that the trainer has in memory."""
    steps, workers = running(folder.train)
    assert "libtorch" in Path("/proc/self/maps").read_text()
    assert len(workers) == 2
    for worker in workers:
        assert "libtorch" not in Path(f"/proc/{worker}/maps").read_text()
    steps.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_is_said_of_cuda_graphs_recorded_before_the_workers_start(root):
    program = """
import sys, torch
from timestepper.data import loader, open_dataset
graph, number = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
with torch.cuda.graph(graph):
    number += 1
images = open_dataset("folder", sys.argv[1], size=64).train
print(len(list(loader(images, batch_size=6, seed=0, training=True, workers=2, device="cuda").epoch(0))))
"""
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("20\n", "")


def test_signals_meant_for_the_trainer_pass_the_workers_by(folder):
    steps, workers = running(folder.train)
    for name in ("INT", "TERM", "USR1", "USR2"):
        subprocess.run(["kill", f"-{name}", *map(str, workers)], check=True)
    rest = list(steps)
    assert equal(rest, batches(folder.train, batch_size=2)[1:])


def test_a_trainer_that_is_told_to_stop_starts_no_more_workers():
    """While they start, its signals wait: a thousand of them would make it deaf for minutes."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(len(children(os.getpid()))))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        workers = Workers(5, View(8, 8), 4)
        assert len(workers._processes) == 1
        workers.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)
    assert len(heard) == 1


def test_closing_an_epoch_ends_its_workers(folder):
    steps, workers = running(folder.train)
    assert len(workers) == 2
    steps.close()
    assert not any(map(alive, workers))


def test_the_workers_of_an_epoch_serve_the_next_and_end_with_the_loader(folder, expected):
    before = children(os.getpid())
    train = make(folder.train, workers=2)
    assert equal(list(train.epoch(0)), expected)
    workers = [child for child in children(os.getpid()) if child not in before]
    assert len(workers) == 2
    assert equal(list(train.epoch(1)), batches(folder.train, epoch=1))
    assert [child for child in children(os.getpid()) if child not in before] == workers
    list(train.epoch(2, first_step=8))
    del train
    assert not any(map(alive, workers))


def test_an_epoch_left_early_does_not_disturb_the_next(folder):
    train = make(folder.train, workers=2)
    steps = train.epoch(0)
    next(steps)
    steps.close()
    assert equal(list(train.epoch(1)), batches(folder.train, epoch=1))


def test_a_bad_file_ends_the_workers_and_the_first_one_is_named(tmp_path):
    folder = open_dataset("folder", write_digit_folder(tmp_path / "bad", per_class=4), size=16)
    for number in (3, 20, 38):
        with open(folder.train.paths[number], "wb"):
            pass
    before = children(os.getpid())
    with pytest.raises(DataError, match=f"{folder.train.paths[3]}: cannot be read as an image"):
        batches(folder.train, training=False, batch_size=40, workers=2)
    assert children(os.getpid()) == before


def test_a_killed_worker_is_told_with_advice(folder):
    steps, workers = running(folder.train)
    with pytest.raises(LoaderError, match=r"worker failed \(process \d+ ended with .* -9\).*fewer workers") as caught:
        kill_and_go_on(workers[0], steps)
    assert "\n" not in str(caught.value)
    assert not any(map(alive, workers)), "though the error still refers to the loader"
    assert caught.value.exit_code == 1


def kill_and_go_on(worker, steps):
    os.kill(worker, signal.SIGKILL)
    list(steps)


def test_a_worker_killed_while_its_batch_is_awaited_is_told(folder):
    """It is held before it is given anything, and so makes nothing until it is killed."""
    batches = make(folder.train, training=False, workers=1)
    (worker,) = batches.processes()._processes.values()
    os.kill(worker.pid, signal.SIGSTOP)
    killer = threading.Timer(0.3, worker.kill)
    killer.start()
    with pytest.raises(LoaderError, match=f"process {worker.pid} ended with exit code -9"):
        list(batches.epoch(0))
    killer.join()


def test_a_worker_killed_between_two_batches_is_told_at_the_next(folder):
    """Not in the middle of, say, saving, and although that next batch and others may be there already."""
    steps, workers = running(folder.train)
    time.sleep(0.3)  # so that, most likely, it has made several before it dies
    os.kill(workers[0], signal.SIGKILL)
    os.waitid(os.P_PID, workers[0], os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        subprocess.run(["true"], check=True)
    with pytest.raises(LoaderError, match=f"process {workers[0]} ended with exit code -9"):
        next(steps)


def train_and(then, images, pids):
    """A trainer of its own: starts an epoch with two workers, tells their process ids, does `then`, leaves."""
    steps, workers = running(images)
    pids.send(workers)
    then()
    steps.close()


@pytest.fixture
def trainer(folder):
    """Starts `train_and` as a process and returns it with the process ids of its workers."""
    started = []

    def start(then):
        receiving, sending = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=train_and, args=(then, folder.train, sending))
        process.start()
        started.append(process)
        return process, receiving.recv()

    yield start
    for process in started:
        process.kill()
        process.join()


def test_workers_do_not_hold_up_a_trainer_that_leaves(trainer):
    """It leaves with an epoch half done and its generator still referred to."""
    process, workers = trainer(lambda: sys.exit(3))
    process.join(timeout=120)
    assert process.exitcode == 3
    assert len(workers) == 2
    assert not any(map(alive, workers))


def test_workers_leave_soon_after_a_killed_trainer(trainer):
    process, workers = trainer(lambda: time.sleep(600))
    process.kill()
    process.join()
    assert len(workers) == 2
    wait_for(lambda: not any(map(alive, workers)))


def test_a_worker_whose_trainer_is_dead_before_it_begins_leaves(tmp_path):
    """Though its channel is open: another process of the trainer's may have inherited that."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "memory").write_bytes(bytes(12))
    ours, theirs = multiprocessing.Pipe()
    with open(tmp_path / "memory", "r+b") as memory:
        descriptors = theirs.fileno(), memory.fileno()
        program = f"from timestepper.data.worker import main; main({dead.pid}, *{descriptors}, 0, (2, 2, False, False))"
        subprocess.run([sys.executable, "-c", program], pass_fds=descriptors, timeout=120, check=True)
    ours.close()
    theirs.close()
