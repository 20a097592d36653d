"""Traps that others fell into, one test each, with the error's text."""

import copy
import functools
import multiprocessing
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import timm
import torch
import torch.distributed as dist
import torch.nn.utils.prune
from families import FAMILIES
from timm.optim import param_groups_layer_decay
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from training import batch, train

import timestepper
from timestepper import reparam
from timestepper.errors import (
    ActivationCheckpointingError,
    AlreadyAttachedError,
    MismatchError,
    NonFiniteError,
    NoSitesError,
    NotAttachedError,
    SideEntranceError,
    StepSizeError,
    UnknownNameError,
    UnsupportedSiteError,
    WrappedModelError,
)
from timestepper.models import CifarResNet


def small(**options) -> nn.Module:
    torch.manual_seed(0)
    return CifarResNet(8, num_classes=5, width=8, **options)


def bits(model: nn.Module) -> dict:
    return {key: value.clone() for key, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict) -> bool:
    after = model.state_dict()
    return list(after) == list(before) and all(torch.equal(after[key], before[key]) for key in before)


# -- folding ---------------------------------------------------------------------------------------------------------


def test_folding_in_train_mode_changes_no_statistics_and_keeps_the_mode():
    net = train(timestepper.attach(small())).train()
    before = bits(net)
    plain = timestepper.fold(net)
    assert plain.training
    assert unchanged(net, before)
    images, _ = batch()
    assert torch.equal(plain.eval()(images), net.eval()(images))


def test_folding_in_half_precision_multiplies_in_float32_and_casts_once():
    net = train(timestepper.attach(small()))
    exact = timestepper.fold(net).state_dict()
    low = copy.deepcopy(net).bfloat16()
    with pytest.warns(UserWarning, match=r"cast once to bfloat16: a weight moves by at most 3\.9e-03"):
        folded = timestepper.fold(low).eval()
    expected = {key: value.bfloat16() for key, value in net.state_dict().items()}
    step = timestepper.step_sizes(low)["layer1"]
    assert step.dtype == torch.float32
    weight = (expected["layer1.0.bn2.weight"].float() * step[0]).bfloat16()
    assert torch.equal(folded.layer1[0].bn2.weight, weight)
    assert not torch.equal(folded.layer1[0].bn2.weight.float(), exact["layer1.0.bn2.weight"])
    images = batch()[0].bfloat16()
    assert torch.equal(folded(images), low.eval()(images))


def test_folding_in_float32_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.fold(timestepper.attach(small()))


@pytest.mark.parametrize("name", ["layer2.0.conv1.weight", "linear.bias", "controllers.layer1.output_bias"])
def test_a_nan_at_fold_time_is_named_and_nothing_is_changed(name):
    net = timestepper.attach(small())
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] = float("nan")
    before = {key: value.nan_to_num() for key, value in bits(net).items()}
    named = "layer1.0.bn2.weight" if "controllers" in name else name
    with pytest.raises(NonFiniteError, match=f"cannot fold: .*{named}"):
        timestepper.fold(net)
    assert all(torch.equal(value.nan_to_num(), before[key]) for key, value in net.state_dict().items())


def test_folding_a_plain_network_is_refused():
    for call in (timestepper.fold, timestepper.detach, timestepper.step_sizes):
        with pytest.raises(NotAttachedError, match=r"CifarResNet has no controllers; call timestepper.attach first"):
            call(small())


# -- attach and detach -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_detach_leaves_nothing_behind(family):
    torch.manual_seed(0)
    model = FAMILIES[family]()
    kind, before, attributes = type(model), bits(model), set(vars(model))
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    net = timestepper.attach(model)
    net.eval()(batch()[0])
    back = timestepper.detach(net)
    assert back is model
    assert type(back) is kind
    assert unchanged(back, before)
    assert set(vars(back)) == attributes
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in back.modules()]
    timestepper.attach(back, "two_fc")  # and it can be attached to again


def test_attaching_twice_is_refused():
    net = timestepper.attach(small())
    with pytest.raises(AlreadyAttachedError, match=r"has controllers already \(lstm\); call timestepper.detach"):
        timestepper.attach(net)
    with pytest.raises(AlreadyAttachedError, match="0 has controllers already"):
        timestepper.attach(nn.Sequential(net))


@pytest.mark.parametrize("name", ["controllers", "stepping"])
def test_a_part_with_a_name_of_ours_is_refused(name):
    model = small()
    model.add_module(name, nn.Linear(1, 1))
    with pytest.raises(
        AlreadyAttachedError, match="CifarResNet has a part or attribute named 'controllers' or 'stepping'"
    ):
        timestepper.attach(model)


def test_attaching_to_a_compiled_network_is_refused():
    with pytest.raises(WrappedModelError, match="wrapped in OptimizedModule; attach first, then wrap"):
        timestepper.attach(torch.compile(small()))
    model = small()
    model.compile()
    with pytest.raises(WrappedModelError, match="CifarResNet is compiled; attach first, then compile"):
        timestepper.attach(model)


def test_attaching_to_a_wrapped_network_is_refused(unused_port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{unused_port}", rank=0, world_size=1)
    try:
        with pytest.raises(WrappedModelError, match="wrapped in DistributedDataParallel; attach first"):
            timestepper.attach(DistributedDataParallel(small()))
    finally:
        dist.destroy_process_group()
    with pytest.raises(WrappedModelError, match="wrapped in DataParallel; attach first"):
        timestepper.attach(nn.DataParallel(small()))
    with pytest.raises(WrappedModelError, match="wrapped in AveragedModel; attach first"):
        timestepper.attach(AveragedModel(small()))


def test_a_network_without_sites_names_what_it_has_and_what_is_known():
    with pytest.raises(NoSitesError, match=r"Sequential has no .* it has Conv2d, ReLU; known are .*Bottleneck"):
        timestepper.attach(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()))


def test_a_name_in_place_of_a_network_is_refused():
    with pytest.raises(NoSitesError, match=r"takes a network, not 'resnet50'; .*create_model"):
        timestepper.attach("resnet50")


class ActivatedNorm(nn.BatchNorm2d):
    """Hides an activation, so it is not linear per channel."""

    def forward(self, x):
        return torch.relu(super().forward(x))


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (lambda: ActivatedNorm(8), "the branch ends in ActivatedNorm, which cannot take a step size"),
        (lambda: nn.GroupNorm(2, 8), "the branch ends in GroupNorm"),
        (lambda: nn.BatchNorm2d(8, affine=False), "its adapter names layer1.0.bn2, which is no layer with a weight"),
        (lambda: nn.Identity(), "its adapter names layer1.0.bn2, which is no layer with a weight"),
    ],
)
def test_a_last_layer_that_cannot_be_reparameterised_is_named(last, reason):
    model = small()
    model.layer1[0].bn2 = last()
    before = bits(model)
    with pytest.raises(UnsupportedSiteError, match=rf"layer1\.0.*: {reason}"):
        timestepper.attach(model)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (nn.utils.parametrizations.weight_norm, "ParametrizedConv2d"),
        (lambda conv: nn.utils.prune.identity(conv, "weight"), "Conv2d"),
    ],
)
def test_a_last_layer_whose_weight_is_computed_is_named(compute, kind):
    """There is no parameter to multiply. A convolution inside the branch may be parametrised."""
    model = FAMILIES["densenet"]()
    compute(model.block1[0].conv)
    with pytest.raises(UnsupportedSiteError, match=rf"block1\.0\.conv: the branch ends in {kind}, .*not parametrised"):
        timestepper.attach(model)


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (lambda: nn.Conv2d(8, 8, 1, groups=2), "the gate starts with Conv2d"),
        (lambda: nn.BatchNorm2d(8), "the gate starts with BatchNorm2d"),
    ],
)
def test_a_gate_that_cannot_be_reparameterised_is_named(gate, reason):
    """The columns that a step size divides must be those of all channels."""
    model = small()
    model.layer1[0].gate = gate()
    with pytest.raises(UnsupportedSiteError, match=f"layer1.0.gate: {reason}, which cannot take a step size"):
        reparam.entries(model, ("layer1.0.bn2",), "layer1.0.gate")


def test_a_parameter_that_layers_share_is_named():
    """In two sites, or in a site and elsewhere: folding would multiply both."""
    for other in ("layer1.1.bn2", "layer1.1.bn1"):
        model = CifarResNet(14, num_classes=5, width=8)
        model.get_submodule(other).weight = model.layer1[0].bn2.weight
        with pytest.raises(UnsupportedSiteError, match=r"layer1\.0\.bn2\.weight is shared with"):
            timestepper.attach(model)


def test_an_attention_that_cannot_be_reparameterised_is_named():
    with pytest.raises(UnsupportedSiteError, match=r"layer1\.0: BasicBlock has the attention EcaModule"):
        timestepper.attach(timm.create_model("resnet18", block_args={"attn_layer": "eca"}))
    pooled_twice = functools.partial(timm.layers.SEModule, add_maxpool=True)  # a maximum is not linear
    with pytest.raises(UnsupportedSiteError, match=r"SEModule \(without add_maxpool\) only"):
        timestepper.attach(timm.create_model("resnet18", block_args={"attn_layer": pooled_twice}))


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf")])
def test_a_fixed_step_must_be_positive(value):
    with pytest.raises(StepSizeError, match="a fixed step size must be a positive number, not"):
        timestepper.attach(small(), timestepper.controllers.fixed(value))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'lstn'; known are lstm, two_fc, independent, fixed"):
        timestepper.attach(small(), "lstn")
    with pytest.raises(StepSizeError, match=r"write it as fixed\(value\) with numbers"):
        timestepper.attach(small(), "fixed")
    with pytest.raises(UnknownNameError, match="unknown descriptor 'sum'; known are mean, visible"):
        timestepper.attach(small(), descriptor="sum")
    with pytest.raises(StepSizeError, match="reduction must be a whole number of at least 1, not 0"):
        timestepper.attach(small(), reduction=0)
    with pytest.raises(UnknownNameError, match=r"'resnet50'; write LIBRARY/MODEL, for example timm/resnet50"):
        timestepper.adapters.create_model("resnet50")
    with pytest.raises(UnknownNameError, match=r"did you mean .*resnet50"):
        timestepper.adapters.create_model("timm/resnet5O")
    with pytest.raises(UnknownNameError, match=r"'xqzw1234'; did you mean resnet"):
        timestepper.adapters.create_model("timm/xqzw1234")
    with pytest.raises(UnknownNameError, match=r"known are .*resnet18"):
        timestepper.adapters.create_model("torchvision/resnet19")
    with pytest.raises(UnknownNameError, match="6n"):
        timestepper.adapters.create_model("cifar/resnet57")


# -- calling -----------------------------------------------------------------------------------------------------------


def test_side_entrances_do_not_run_without_step_sizes():
    net = timestepper.attach(FAMILIES["timm resnet18"]())
    with pytest.raises(SideEntranceError, match=r"ResNet.forward_features would run without step sizes; .*fold\(net\)"):
        net.forward_features(batch()[0])
    assert not hasattr(net, "forward_features")
    assert net.num_classes == 5  # plain attributes are the base's
    timestepper.fold(net).forward_features(batch()[0])
    net = timestepper.attach(FAMILIES["torchvision resnet18"]())
    assert net._norm_layer is nn.BatchNorm2d  # a class is a setting, too
    with pytest.raises(AttributeError, match="'Attached' object has no attribute 'nothing'"):
        _ = net.nothing


def test_activation_checkpointing_is_refused():
    model = FAMILIES["timm resnet18"]()
    net = timestepper.attach(model)
    model.set_grad_checkpointing(True)
    with pytest.raises(ActivationCheckpointingError, match=r"switch it off \(timm: model.set_grad"):
        net(batch()[0])
    with pytest.raises(ActivationCheckpointingError, match="activation checkpointing is on"):
        timestepper.attach(model)
    with pytest.raises(ActivationCheckpointingError, match="activation checkpointing is on"):
        timestepper.attach(nn.Sequential(checkpoint_wrapper(small())))


class Recomputing(CifarResNet):
    """A user's own network that recomputes its stages, in one of torch's two ways."""

    reentrant = False

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = checkpoint(stage, x, use_reentrant=self.reentrant)
        return self.linear(x.mean((2, 3)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_inside_a_network_is_refused(reentrant):
    """Its gradients would be silently wrong. The network that failed runs on, and others may use checkpoints."""
    torch.manual_seed(0)
    plain = Recomputing(8, num_classes=5, width=8)
    plain.reentrant = reentrant
    net = timestepper.attach(plain)
    with pytest.raises(ActivationCheckpointingError, match="activation checkpointing is on"):
        net(batch()[0])
    assert plain(batch()[0]).isfinite().all()
    assert isinstance(net.layer1[0].bn2.weight, nn.Parameter)


def test_activation_checkpointing_put_around_blocks_later_is_refused():
    net = timestepper.attach(small())
    apply_activation_checkpointing(net, check_fn=lambda module: isinstance(module, type(net.layer1[0])))
    with pytest.raises(ActivationCheckpointingError, match="activation checkpointing is on"):
        net(batch()[0])


def test_a_compiled_network_may_recompute():
    """It is one graph, with the effective parameters in it."""
    torch.manual_seed(0)
    base = Recomputing(8, num_classes=5, width=8)
    net, literal = timestepper.attach(base), timestepper.attach(small())
    literal.load_state_dict(net.state_dict())
    images, labels = batch()
    for model in (torch.compile(net, backend="aot_eager"), literal):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    for name, parameter in literal.named_parameters():
        torch.testing.assert_close(net.get_parameter(name).grad, parameter.grad)


def test_threads_take_turns():
    net = timestepper.attach(small()).eval()
    images = batch()[0]
    with torch.no_grad():
        expected = net(images)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: net(images), range(24)))
    assert all(torch.equal(logits, expected) for logits in found)
    assert all(isinstance(parameter, nn.Parameter) for parameter in net.layer3[0].bn2._parameters.values())


def test_networks_do_not_wait_for_each_other():
    """A student's forward may wait for a teacher in another thread."""
    teacher, student = timestepper.attach(small()).eval(), timestepper.attach(small()).eval()
    with ThreadPoolExecutor(1) as pool:

        def ask(module, inputs):
            pool.submit(teacher, *inputs).result(timeout=30)

        timestepper.detach(student).register_forward_pre_hook(ask)
        assert student(batch()[0]).shape == (4, 5)


@pytest.mark.parametrize("look", [timestepper.evolution_time, timestepper.descriptor_influence])
def test_who_looks_at_a_network_waits_for_its_call(look):
    """During a call the last convolutions of DenseNet, which its controllers read, hold the effective weights."""
    net = timestepper.attach(FAMILIES["densenet"]()).eval()
    expected = look(net)
    with ThreadPoolExecutor(1) as pool:
        futures = []

        def peek(module, inputs):
            futures.append(pool.submit(look, net))
            wait(futures, timeout=1)  # in vain, because it is our turn

        handle = timestepper.detach(net).register_forward_pre_hook(peek)
        net(torch.zeros(1, 3, 32, 32))
        handle.remove()
        assert [future.result(timeout=60) for future in futures] == [expected]


def test_a_forked_process_waits_for_nobody():
    """The thread that was in a call is not there in it."""
    net, inside, go_on = timestepper.attach(small()).eval(), threading.Event(), threading.Event()

    def stay(module, inputs):
        inside.set()
        go_on.wait(60)

    handle = timestepper.detach(net).register_forward_pre_hook(stay)
    other = timestepper.attach(small()).eval()
    thread = threading.Thread(target=net, args=(batch()[0],))
    thread.start()
    try:
        assert inside.wait(60)
        child = multiprocessing.get_context("fork").Process(target=_look, args=(net, other))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    finally:
        handle.remove()
        go_on.set()
        thread.join()


def _look(*nets):
    for net in nets:
        timestepper.step_sizes(net)


def test_what_recomputes_nothing_is_no_trouble():
    """Without gradients there is no backward pass; and a whole network recomputes its own step sizes."""
    torch.manual_seed(0)
    recomputing, net = timestepper.attach(Recomputing(8, num_classes=5, width=8)).eval(), timestepper.attach(small())
    with torch.no_grad():
        recomputing(batch()[0])
    gradients = []
    for run in (net, lambda x: checkpoint(net, x, use_reentrant=False)):
        net.zero_grad()
        run(batch()[0]).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    torch.testing.assert_close(*gradients)


def test_copies_of_data_parallel_are_refused():
    copy_of_one = timestepper.attach(small())._replicate_for_data_parallel()
    with pytest.raises(WrappedModelError, match="use DistributedDataParallel instead"):
        copy_of_one(batch()[0])


def test_tracing_is_refused_and_the_folded_network_is_named():
    net = timestepper.attach(small()).eval()
    for trace in (torch.fx.symbolic_trace, lambda model: torch.jit.trace(model, batch()[0])):
        for model in (net, nn.Sequential(net)):
            with pytest.raises(WrappedModelError, match=r"trace timestepper.fold\(net\)"):
                trace(model)
        trace(timestepper.fold(net))


def test_what_was_sharded_first_is_refused(unused_port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{unused_port}", rank=0, world_size=1)
    try:
        model = small()
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(model.layer1[0], mesh=mesh)
        with pytest.raises(WrappedModelError, match=r"layer1\.0 is wrapped in FSDPModule; attach first"):
            timestepper.attach(model)
        net = timestepper.attach(small())
        fully_shard(net.layer1, mesh=mesh)
        with pytest.raises(WrappedModelError, match=r"layer1\.0\.bn2\.weight is sharded .* without its parts"):
            net(batch()[0])
    finally:
        dist.destroy_process_group()


# -- what happens to the network afterwards --------------------------------------------------------------------------


def test_a_part_replaced_on_the_base_is_noticed():
    model = FAMILIES["timm resnet18"]()
    net = timestepper.attach(model)
    with pytest.raises(SideEntranceError, match="if it changes the network, call it before you attach"):
        net.reset_classifier(7)
    timestepper.detach(net).reset_classifier(7)
    for use in (lambda: net(batch()[0]), lambda: timestepper.fold(net)):
        with pytest.raises(MismatchError, match=r"global_pool, fc replaced on ResNet itself.*net\.fc = …"):
            use()
    net.fc, net.global_pool = model.fc, model.global_pool
    assert net(batch()[0]).shape == (4, 7)
    assert net.state_dict()["fc.weight"].shape[0] == 7


def test_a_way_of_its_own_to_switch_modes_is_the_network_s():
    class Frozen(CifarResNet):
        def train(self, mode=True):
            super().train(mode)
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
            return self

    net = timestepper.attach(Frozen(8, num_classes=5, width=8)).train()
    before = bits(net)
    net(batch()[0])
    assert unchanged(net, before)
    assert net.training
    assert net.layer1.training


def test_a_last_layer_that_is_pruned_later_is_noticed():
    net = timestepper.attach(small())
    torch.nn.utils.prune.identity(net.layer1[0].bn2, "weight")
    for use in (lambda: net(batch()[0]), lambda: timestepper.fold(net)):
        with pytest.raises(
            UnsupportedSiteError, match=r"layer1\.0\.bn2\.weight is computed from other parameters since"
        ):
            use()


def test_batch_norms_that_timm_freezes_fold():
    net = train(timestepper.attach(FAMILIES["timm resnet18"]()))
    timm.utils.freeze(net, ["layer1"])
    net.eval()
    assert torch.equal(timestepper.fold(net)(batch()[0]), net(batch()[0]))


def test_timm_s_optimisers_see_the_network_s_groups():
    model = FAMILIES["timm resnet18"]()
    plain = {id(p): group["lr_scale"] for group in param_groups_layer_decay(model) for p in group["params"]}
    net = timestepper.attach(model)
    assert net.get_classifier() is model.fc
    for group in param_groups_layer_decay(net):
        for parameter in group["params"]:
            assert group["lr_scale"] == plain.get(id(parameter), 1.0)


def test_a_mask_of_infinities_folds_and_one_of_nan_does_not():
    model = small()
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1).nan_to_num(nan=0.0, neginf=-torch.inf))
    assert timestepper.fold(timestepper.attach(model)).mask.isinf().any()
    model.mask.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="mask holds NaN"):
        timestepper.fold(timestepper.attach(model))


def test_a_frozen_batch_norm_that_is_infinite_does_not_fold():
    net = timestepper.attach(FAMILIES["timm resnet18"]())
    timm.utils.freeze(net)
    net.layer1[0].bn2.weight.fill_(torch.inf)  # a buffer now, and no mask
    with pytest.raises(NonFiniteError, match=r"layer1\.0\.bn2\.weight holds NaN or infinity"):
        timestepper.fold(net)


def test_a_frozen_batch_norm_that_a_controller_makes_nan_does_not_fold():
    net = timestepper.attach(FAMILIES["timm resnet18"]())
    timm.utils.freeze(net)
    for parameter in net.controllers.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(NonFiniteError, match=r"bn2\.weight holds NaN"):
        timestepper.fold(net)


def test_controllers_inside_a_larger_network_are_found_by_name():
    whole = nn.ModuleDict({"encoder": timestepper.attach(small()), "head": nn.Linear(5, 2)})
    for look in (timestepper.fold, timestepper.detach, timestepper.step_sizes):
        with pytest.raises(NotAttachedError, match="has no controllers, but its part encoder has: give that one"):
            look(whole)


def test_a_new_head_is_used():
    net = timestepper.attach(small()).eval()
    net.linear = nn.Linear(32, 7)
    assert net(batch()[0]).shape == (4, 7)
    assert timestepper.fold(net).linear.out_features == 7


def test_a_setting_of_the_base_is_set_in_the_base():
    model = FAMILIES["timm resnet18"]()
    model.fused = "the base's own"
    net = timestepper.attach(model)
    assert (model.fused, net.fused) == ("the base's own", None)
    net.drop_rate = 0.9
    assert timestepper.detach(net).drop_rate == net.drop_rate == 0.9
    net.fused = False
    assert (model.fused, net.fused) == ("the base's own", False)
    net.mine = 1
    assert not hasattr(timestepper.detach(net), "mine")


def test_weight_decay_acts_differently_after_folding():
    """From the same function, one step of pure decay parts an attached and a folded network: decay pulls a step size
    towards 0.5 and a folded weight towards 0. So training on from a folded network is a choice, never silent."""
    net = train(timestepper.attach(small(), "independent")).eval()
    images, _ = batch()
    plain = timestepper.fold(net)
    assert torch.equal(net(images), plain(images))
    for model in (net, plain):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5.0).step()
    difference = (net(images) - plain(images)).abs().max() / net(images).abs().max()
    assert difference > 1e-3
