"""What a user's own training script does to a network, it can do to an attached one."""

import copy
import io
import os

import pytest
import timm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from families import FAMILIES, KINDS, SMALL
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import batch, train

import timestepper
from timestepper.models import CifarResNet


def small(kind: str = "lstm") -> nn.Module:
    torch.manual_seed(0)
    return train(timestepper.attach(CifarResNet(20, num_classes=5, width=8), kind))


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_to_one_full_graph(kind):
    net = small(kind).double()  # so that a difference means a mistake, not the order of a sum
    images, labels = batch()[0].double(), batch()[1]
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")
    loss, reference = F.cross_entropy(compiled(images), labels), F.cross_entropy(net(images), labels)
    torch.testing.assert_close(loss, reference)
    loss.backward()
    reference.backward()
    for (name, got), want in zip(compiled.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_compiles_to_one_full_graph(family):
    torch.manual_seed(0)
    net = timestepper.attach(FAMILIES[family]()).eval()
    images, _ = batch()
    with torch.no_grad():
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")(images)
        torch.testing.assert_close(compiled, net(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "two_fc"])
def test_inductor_gives_the_right_gradients_for_stages_of_one_site(kind):
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(8, num_classes=5, width=4), kind).double()
    images, labels = batch(pixels=8)[0].double(), batch()[1]
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True)
    F.cross_entropy(compiled(images), labels).backward()
    F.cross_entropy(net(images), labels).backward()
    for (name, got), want in zip(compiled.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-6, atol=1e-8, msg=name)


def test_autocast_leaves_the_controller_in_float32():
    net = small().eval()
    images, _ = batch()
    exact = timestepper.step_sizes(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = timestepper.step_sizes(net)
        effective = net.effective_parameters()
        logits = net(images)
    assert all(torch.equal(exact[stage], inside[stage]) for stage in exact)
    assert {value.dtype for value in effective.values()} == {torch.float32}
    assert all(torch.equal(effective[name], value) for name, value in net.effective_parameters().items())
    assert logits.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits, timestepper.fold(net)(images))


def _ddp_worker(rank: int, port: int, queue) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        torch.set_num_threads(1)
        net = DistributedDataParallel(small().eval())  # eval: no batch statistics, so two halves make the whole
        images, labels = batch()
        F.cross_entropy(net(images[2 * rank : 2 * rank + 2]), labels[2 * rank : 2 * rank + 2]).backward()
        missing = [name for name, parameter in net.named_parameters() if parameter.grad is None]
        grads = {name: parameter.grad for name, parameter in net.module.named_parameters()}
        if rank == 0:
            buffer = io.BytesIO()
            torch.save({"missing": missing, "grads": grads}, buffer)
            queue.put(buffer.getvalue())
            queue.close()
            queue.join_thread()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # the threads of gloo outlive the group and can abort an interpreter that ends in its own way


def test_two_processes_without_unused_parameters(unused_port):
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_ddp_worker, args=(rank, unused_port, queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    result = torch.load(io.BytesIO(queue.get(timeout=120)), weights_only=True)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert result["missing"] == []
    net = small().eval()
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(result["grads"][name], parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", ["lstm", "two_fc", "independent"])
def test_every_controller_parameter_gets_a_gradient(kind):
    torch.manual_seed(0)
    net = timestepper.attach(FAMILIES["torchvision resnet50"](), kind)  # has stages of one site
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


def test_deepcopy_after_a_forward_is_independent():
    net = small()
    images, _ = batch()
    net(images).sum().backward()
    twin = copy.deepcopy(net).eval()
    net.eval()
    assert torch.equal(net(images), twin(images))
    before = twin(images)
    train(net)
    assert torch.equal(twin(images), before)
    assert timestepper.detach(twin) is not timestepper.detach(net)
    train(twin)  # the copy's own base follows the copy's parameters
    assert not torch.equal(twin.eval()(images), before)


def test_exponential_moving_average():
    net = small()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    images, _ = batch()
    average.update_parameters(net)
    train(net)
    average.update_parameters(net)
    mean = {name: (a + b) / 2 for (name, a), b in zip(small().named_parameters(), net.parameters(), strict=True)}
    for name, parameter in average.module.named_parameters():
        torch.testing.assert_close(parameter, mean[name], msg=name)
    folded = timestepper.fold(average).eval()
    assert torch.equal(folded(images), average.eval()(images))


def test_saves_and_loads_without_pickle():
    net = small().eval()
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    twin = timestepper.attach(CifarResNet(20, num_classes=5, width=8)).eval()
    twin.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    images, _ = batch()
    assert torch.equal(net(images), twin(images))


def test_the_state_dict_is_the_base_plus_controllers():
    net = small()
    base = timestepper.detach(net).state_dict()
    extra = [key for key in net.state_dict() if key not in base]
    assert list(net.state_dict())[: len(base)] == list(base)
    assert extra
    assert all(key.startswith("controllers.") for key in extra)


def test_a_buffer_that_the_base_does_not_save_is_not_saved():
    model = CifarResNet(8, num_classes=5, width=8)
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    net = timestepper.attach(model)
    assert "seen" in dict(net.named_buffers())
    assert "seen" not in net.state_dict()


def test_gradient_accumulation_equals_one_large_batch():
    net = small().eval()  # eval: batch statistics would differ between halves
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    whole = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    for half in (slice(0, 2), slice(2, 4)):
        (F.cross_entropy(net(images[half]), labels[half]) / 2).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-3, atol=1e-6, msg=name)


def test_the_mode_is_that_of_the_network_and_reaches_all_of_it():
    """timm's dropout asks the network itself, not a layer, whether it is training."""
    images, _ = batch()
    model = timm.create_model("resnet18", **SMALL, drop_rate=0.5).eval()
    net = timestepper.attach(model)
    assert not net.training
    assert torch.equal(net(images), net(images))
    net.train()
    assert net.training
    assert model.training
    assert not torch.equal(net(images), net(images))
    net.eval()
    assert not net.training
    assert not model.training
    assert torch.equal(net(images), net(images))


def test_inputs_may_be_given_by_name():
    net = small().eval()
    images, _ = batch()
    assert torch.equal(net(x=images), net(images))


def test_a_compiled_network_is_looked_into_and_folded():
    net = small().eval()
    images, _ = batch()
    assert torch.equal(timestepper.fold(torch.compile(net))(images), net(images))
    assert timestepper.evolution_time(torch.compile(net)) == timestepper.evolution_time(net)


def test_step_sizes_to_look_at_hold_on_to_no_graph():
    assert not any(dt.requires_grad for dt in timestepper.step_sizes(small()).values())


@pytest.mark.parametrize("family", ["cifar resnet20", "densenet", "timm seresnet50"])
def test_channels_last(family):
    torch.manual_seed(0)
    net = train(timestepper.attach(FAMILIES[family]())).eval()
    images, _ = batch()
    reference = net(images)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(images.to(memory_format=torch.channels_last)), reference, rtol=1e-3, atol=1e-4)
    four_dimensional = [value for value in net.effective_parameters().values() if value.dim() == 4]
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in four_dimensional)


def test_frozen_backbone_trains_only_controllers():
    net = small()
    timestepper.detach(net).requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    train(net)
    moved = {name for name, parameter in net.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved
    assert all(name.startswith("controllers.") for name in moved)


def test_frozen_controller_trains_only_the_backbone():
    net = small()
    net.controllers.requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in net.named_parameters()}
    train(net)
    moved = {name for name, parameter in net.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved
    assert not any(name.startswith("controllers.") for name in moved)


def test_descriptor_gradient_can_be_switched_off():
    """Then a convolution gets the gradient that it would get with the same step sizes held constant."""
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(8, num_classes=5, width=8), descriptor_gradient=False)
    nn.init.normal_(net.controllers["layer1"].input_weight, std=3)
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    weight = net.layer1[0].conv1.weight
    through_features = weight.grad.clone()
    frozen = net.effective_parameters()
    net.zero_grad()
    logits = torch.func.functional_call(timestepper.detach(net), {k: v.detach() for k, v in frozen.items()}, images)
    F.cross_entropy(logits, labels).backward()
    torch.testing.assert_close(through_features, weight.grad, rtol=1e-4, atol=1e-7)
    with_descriptor = timestepper.attach(timestepper.detach(net))
    with_descriptor.load_state_dict(net.state_dict())
    with_descriptor.zero_grad()
    F.cross_entropy(with_descriptor(images), labels).backward()
    assert (weight.grad - through_features).abs().max() > 1e-6


def test_the_folded_network_exports():
    net = small().eval()
    images, _ = batch()
    exported = torch.export.export(timestepper.fold(net).eval(), (images,)).module()
    torch.testing.assert_close(exported(images), net(images), rtol=1e-5, atol=1e-5)


def test_moving_to_another_precision_moves_everything():
    net = small().eval().double()
    images, _ = batch()
    assert net(images.double()).dtype == torch.float64
    assert torch.equal(net(images.double()), timestepper.fold(net)(images.double()))


def test_synchronised_batch_norm_reaches_the_base_network():
    """torch puts the new layers in with ``add_module``; one that only the wrapper knew would never be synchronised."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(small())
    for network in (net, timestepper.detach(net)):
        norms = [type(module) for module in network.modules() if "BatchNorm" in type(module).__name__]
        assert norms == [nn.SyncBatchNorm] * 19
    model = nn.SyncBatchNorm.convert_sync_batchnorm(CifarResNet(20, num_classes=5, width=8))  # or before attaching
    assert timestepper.attach(model).state_dict().keys() == net.state_dict().keys()


@pytest.mark.parametrize("kind", KINDS)
def test_runs_with_other_parameters_by_functional_call(kind):
    """As ``torch.func`` users do (per-sample gradients, ensembles, meta-learning)."""
    net, twin = small(kind).eval(), small(kind).eval()
    images, labels = batch()
    others = {name: parameter.detach() * 1.1 for name, parameter in net.named_parameters()}
    twin.load_state_dict(others, strict=False)

    def loss(parameters):
        return F.cross_entropy(torch.func.functional_call(net, parameters, (images,)), labels)

    gradients = torch.func.grad(loss)(others)
    F.cross_entropy(twin(images), labels).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_a_parametrised_convolution_describes_its_branch():
    torch.manual_seed(0)
    model = CifarResNet(8, num_classes=5, width=8)
    nn.utils.parametrizations.weight_norm(model.layer1[0].conv1)
    net = train(timestepper.attach(model)).eval()
    images, _ = batch()
    assert torch.equal(net(images), timestepper.fold(net)(images))
    timestepper.summary(net, (3, 32, 32))


class Twice(nn.Module):
    """One layer under two names: both are keys of its state dict."""

    def __init__(self):
        super().__init__()
        self.body = CifarResNet(8, num_classes=5, width=8)
        self.head = self.also_head = nn.Linear(5, 5)
        self.register_module("unused", None)

    def forward(self, x):
        return self.also_head(torch.relu(self.head(self.body(x))))


def test_a_part_with_two_names_keeps_both_keys():
    net = timestepper.attach(Twice()).eval()
    base = timestepper.detach(net).state_dict()
    assert list(net.state_dict())[: len(base)] == list(base)
    net.load_state_dict(net.state_dict(), strict=True)
    images, _ = batch()
    assert torch.equal(net(images), timestepper.fold(net)(images))


def test_runs_on_the_meta_device():
    """Shapes without memory; then the usual way to fill a network that was made there."""
    with torch.device("meta"):
        net = timestepper.attach(CifarResNet(20, num_classes=5, width=8)).eval()
    images, _ = batch()
    assert net(images.to("meta")).shape == (4, 5)
    net.to_empty(device="cpu").load_state_dict(small().state_dict())
    assert torch.equal(net(images), small().eval()(images))


def test_a_block_in_two_places_has_one_step_size_and_stays_whole():
    """Blocks that share their weights over depth, as in an unrolled differential equation."""
    torch.manual_seed(0)
    model = CifarResNet(14, num_classes=5, width=8)
    model.layer1[1] = model.layer1[0]
    net = timestepper.attach(model)
    images, _ = batch()
    net(images)
    assert all(isinstance(norm.weight, nn.Parameter) for norm in model.modules() if isinstance(norm, nn.BatchNorm2d))
    train(net).eval()
    assert len(timestepper.step_sizes(net)["layer1"]) == 1
    assert torch.equal(net(images), timestepper.fold(net)(images))
