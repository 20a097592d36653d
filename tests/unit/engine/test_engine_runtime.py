import pytest
import torch
from tiny_training import network, trained

from timestepper.engine.runtime import Runtime, choose_device
from timestepper.errors import RecipeError, UnknownNameError
from timestepper.models import CifarResNet

CPU = torch.device("cpu")
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is present")


def test_cuda_graph_on_a_cpu_is_told_of_once():
    told = []
    runtime = Runtime(CPU, cuda_graph=True, tell=told.append)
    assert runtime.graphed(abs) is abs  # the update
    assert runtime.graphed(max) is max  # the evaluation
    assert told == ["no CUDA graph: there is no CUDA device; running step by step"]
    assert Runtime(CPU).graphed(abs) is abs


def test_several_processes_get_no_cuda_graph():
    told = []
    Runtime(torch.device("cuda"), cuda_graph=True, tell=told.append).graphed(abs, distributed=True)
    assert told == ["no CUDA graph: several processes; running step by step"]


@without_cuda
def test_devices():
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(RecipeError, match=r"the device is cuda, .*runtime\.device in a recipe, --device where"):
        choose_device("cuda")
    with pytest.raises(UnknownNameError, match="no device is called 'gpu'; there are auto, cpu, cuda"):
        choose_device("gpu")


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [choose_device("auto", rank).index for rank in (0, 1)] == [0, 1]
    with pytest.raises(RecipeError, match="process 2 of this machine has no GPU: 2 present"):
        choose_device("cuda", 2)


def test_bf16_computes_in_bf16_and_trains_in_float32():
    run = trained(precision="bf16")
    assert {value.dtype for value in run.model.parameters()} == {torch.float32}
    runtime = Runtime(CPU, precision="bf16")
    with runtime.autocast():
        assert runtime.call(network(), network(), torch.ones(2, 1, 4, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_other_precisions_compute_in_float32(precision):
    runtime = Runtime(CPU, precision=precision)
    with runtime.autocast():
        assert runtime.call(network(), network(), torch.ones(2, 1, 4, 4)).dtype == torch.float32


def test_channels_last():
    runtime = Runtime(CPU, channels_last=True)
    model = runtime.place(torch.nn.Conv2d(4, 8, 3))
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert runtime.call(model, model, torch.ones(2, 4, 5, 5)).is_contiguous(memory_format=torch.channels_last)


def test_compiling_keeps_the_keys_and_a_failing_compiler_is_told_of_once():
    told = []
    model = CifarResNet(8, in_chans=1, width=4)  # torch 2.11 leaves a bare nn.Sequential uncompiled
    keys = list(model.state_dict())
    runtime = Runtime(CPU, compile=True, tell=told.append)
    runtime.place(model)
    assert list(model.state_dict()) == keys
    model.compile(backend=lambda graph, inputs: 1 / 0)
    model.eval()
    images = torch.ones(2, 1, 8, 8)
    first = runtime.call(model, model, images)
    assert torch.equal(first, runtime.call(model, model, images))
    assert len(told) == 1
    assert told[0].startswith("not compiled: ")


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_configure_sets_what_torch_keeps(precision):
    try:
        Runtime(CPU, precision=precision, deterministic=True).configure()
        assert torch.backends.cudnn.allow_tf32 is (precision == "tf32")
        assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    finally:
        Runtime(CPU).configure()
    assert not torch.are_deterministic_algorithms_enabled()
