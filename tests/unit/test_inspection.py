"""The numbers that must come out: parameters and multiply-adds of the paper's networks."""

import json
import math
import re
import subprocess
import sys
import threading
from collections import UserDict
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import timestepper
from timestepper.adapters import create_model
from timestepper.errors import MismatchError
from timestepper.models import CifarResNet

# lstm train, with step sizes, plain (millions); GFLOPs with the original stride. docs/decisions/0002-gflops.md has
# the three GFLOPs (ResNet-101, SENet-50 and -101) whose last digit the paper prints differently.
PAPER = {
    "timm/resnet18": (13.52, 11.69, 11.69, 1.81),
    "timm/resnet34": (23.63, 21.80, 21.80, 3.66),
    "timm/resnet50": (27.83, 25.57, 25.56, 3.86),
    "timm/resnet101": (46.82, 44.58, 44.55, 7.57),
    "timm/resnext50_32x4d": (27.47, 25.04, 25.03, 3.77),
    "timm/resnext101_32x4d": (46.62, 44.21, 44.18, 7.51),
    "timm/seresnet50": (30.36, 28.10, 28.09, 3.86),
    "timm/seresnet101": (51.60, 49.36, 49.33, 7.57),
}


@pytest.mark.parametrize("name", PAPER)
def test_counts(name):
    found = timestepper.summary(timestepper.attach(create_model(name, original_stride=True)))
    counts = (found.parameters_train, found.parameters_with_steps, found.parameters_folded)
    assert tuple(round(count / 1e6, 2) for count in counts) == PAPER[name][:3]
    assert round(found.gflops, 2) == PAPER[name][3]


def test_counts_of_the_other_controllers_and_strides():
    net = timestepper.attach(create_model("timm/resnet50"), "two_fc")
    assert round(timestepper.summary(net).parameters_train / 1e6, 2) == 31.23
    found = timestepper.summary(timestepper.attach(timestepper.detach(net), "independent"))
    assert round(found.parameters_train / 1e6, 2) == 25.57
    assert found.gflops_controller == 0
    assert round(found.gflops, 2) == 4.09  # timm strides in the 3x3


def test_the_controllers_products_and_their_look_at_the_weights_are_counted():
    found = timestepper.summary(timestepper.attach(create_model("cifar/resnet8")), (3, 32, 32))
    read = 9 * (2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
    products = sum(2 * 9 * c * (c // 4) + 8 * (c // 4) ** 2 + (c // 4) * c for c in (16, 32, 64))
    assert found.gflops_controller == pytest.approx((read + products) / 1e9, rel=1e-12)


def test_the_summary_shows_what_is_there():
    found = timestepper.summary(timestepper.attach(create_model("cifar/resnet20"), "fixed(0.25)"), (3, 32, 32))
    assert [len(stage.sites) for stage in found.stages] == [3, 3, 3]
    assert found.stages[0].sites[0] == "layer1.0"
    assert [stage.evolution_time for stage in found.stages] == [0.75] * 3
    assert [stage.step_sizes for stage in found.stages] == [(0.25, 0.25, 0.25)] * 3
    assert [stage.hidden for stage in found.stages] == [4, 8, 16]
    assert found.skipped == ()
    table = str(found).splitlines()
    assert table[1].split() == ["stage", "site", "channels", "descriptor", "hidden", "step", "size", "T"]
    assert table[2].split() == ["layer1", "layer1.0", "16", "288", "4", "0.250"]
    assert table[4].split() == ["layer1.2", "16", "288", "4", "0.250", "0.750"]
    assert len(set(map(len, (table[1], table[4], table[7])))) == 1


def test_the_summary_names_what_stands_beside_the_blocks():
    model = create_model("cifar/resnet8")
    model.layer2.append(torch.nn.Identity())
    found = timestepper.summary(timestepper.attach(model), (3, 32, 32))
    assert found.skipped == ("layer2.1 (Identity)",)
    assert str(found).endswith("skipped     layer2.1 (Identity)")


class Log:
    """What users hang on their networks. Like a file or a progress bar, it cannot be copied."""

    def __init__(self, model):
        self.lock = threading.Lock()
        self.means = []
        for part in model.modules():
            part.register_forward_pre_hook(self.called)
            part.register_forward_hook(self.called, always_call=True)
            part.register_full_backward_pre_hook(self.called)
            part.register_full_backward_hook(self.called)

    def called(self, part, *values):
        tensor = values[-1][0] if isinstance(values[-1], tuple) else values[-1]
        self.means.append(tensor.mean().item())


def test_the_users_hooks_are_left_alone():
    net = timestepper.attach(create_model("cifar/resnet8"))
    expected = timestepper.summary(net, (3, 32, 32)).gflops
    model = timestepper.detach(net)
    log, called = Log(model), len(list(model.modules()))
    timestepper.attach(model)
    assert timestepper.summary(net, (3, 32, 32)).gflops == expected
    assert log.means == []
    with torch.no_grad():
        net(torch.randn(1, 3, 32, 32))
    assert len(log.means) == 2 * called


def test_a_network_that_takes_no_image_is_counted_on_an_example():
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    net = timestepper.attach(LlamaForCausalLM(config))
    attention = 4 * 16 * 16 * 8 + 2 * 8 * 8 * 16  # of 8 tokens
    expected = 2 * (attention + 3 * 16 * 24 * 8) + 16 * 50 * 8
    assert timestepper.summary(net).gflops == expected / 1e9
    assert timestepper.summary(net, example={"input_ids": torch.zeros(2, 8, dtype=int)}).gflops == 2 * expected / 1e9
    with pytest.raises(MismatchError, match=r"LlamaForCausalLM cannot be counted on one image .* or example=, what"):
        timestepper.summary(net, (3, 8, 8))
    words = {"input_ids": torch.zeros(1, 8, dtype=int), "attention_mask": torch.ones(1, 8, dtype=int)}
    for example in (words, UserDict(words), {**words, "use_cache": False}):  # as a tokenizer gives them
        assert timestepper.summary(net, example=example).gflops == expected / 1e9
    with pytest.raises(MismatchError, match="give one of them"):
        timestepper.summary(net, (3, 8, 8), example=words)


def test_heads_that_share_keys_and_values_are_counted_on_a_cpu_too():
    """A mask makes transformers look at numbers, so it is not counted on shapes alone."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    net = timestepper.attach(LlamaForCausalLM(config))
    words = {"input_ids": torch.zeros(1, 8, dtype=int), "attention_mask": torch.ones(1, 8, dtype=int)}
    attention = (2 * 16 * 16 + 2 * 16 * 8) * 8 + 2 * 8 * 8 * 16  # of 8 tokens
    assert timestepper.summary(net, example=words).gflops == (attention + 3 * 16 * 24 * 8 + 16 * 50 * 8) / 1e9


def test_a_network_of_ones_own_has_a_summary_without_saying_what_it_takes():
    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

        def forward(self, x):
            return x + self.last(self.first(x).relu())

    words = torch.zeros(2, 5, 16)
    net = timestepper.attach(torch.nn.Sequential(Residual(), Residual()), example=words)
    counted = timestepper.summary(net, example=words)
    assert counted.gflops == 2 * 2 * 10 * 16 * 32 / 1e9
    found = timestepper.summary(net)
    assert found == replace(counted, gflops=None)
    assert "GFLOPs      not counted (give input_size or example=); the" in str(found)
    for wrong in ({"input_size": (3, 32, 32)}, {"example": torch.zeros(2, 5, 8)}):
        with pytest.raises(MismatchError, match="the multiply-adds of Sequential cannot be counted on"):
            timestepper.summary(net, **wrong)


def test_a_network_that_looks_at_numbers_before_it_decides_is_counted_on_some():
    class OneOfTwoWays(CifarResNet):
        def forward(self, x):
            return super().forward(x if x.mean() > 0 else -x)

    net, usual = (timestepper.attach(made(8)) for made in (OneOfTwoWays, CifarResNet))
    state = torch.get_rng_state()
    assert timestepper.summary(net, (3, 32, 32)).gflops == timestepper.summary(usual, (3, 32, 32)).gflops
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("told", [{"input_size": 32}, {"input_size": (32, 32)}, {"input_size": (224, 224, 3)}])
def test_a_network_that_tells_nonsense_of_its_input_is_counted_on_an_image(told):
    net = timestepper.attach(CifarResNet(8))
    net.default_cfg = told
    assert timestepper.summary(net).gflops == timestepper.summary(net, (3, 224, 224)).gflops


def test_a_network_is_counted_on_the_input_that_it_tells_of():
    net = timestepper.attach(create_model("timm/test_vit", in_chans=1))
    assert timestepper.summary(net).gflops == timestepper.summary(net, (1, 160, 160)).gflops


@pytest.mark.parametrize(
    ("model", "input_size", "reason"),
    [
        (lambda: create_model("cifar/resnet8", in_chans=1), (3, 224, 224), "RuntimeError: "),
        (lambda: create_model("cifar/resnet8"), (3, 32), "RuntimeError: "),
        (lambda: create_model("cifar/resnet8"), 32, "TypeError: "),
    ],
)
def test_a_network_that_does_not_take_the_image_is_named_with_its_size(model, input_size, reason):
    net = timestepper.attach(model())
    name = type(net).__name__
    said = (
        f"multiply-adds of {name} cannot be counted on one image of input_size {re.escape(str(input_size))}: {reason}"
    )
    with pytest.raises(MismatchError, match=rf"^the {said}.*; give the \(channels, height, width\) .*image$") as caught:
        timestepper.summary(net, input_size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("controller", ["lstm", "two_fc", "independent", "fixed(0.25)"])
def test_a_network_on_the_meta_device_has_counts_and_no_step_sizes(controller):
    expected = timestepper.summary(timestepper.attach(create_model("cifar/resnet8"), controller), (3, 32, 32))
    with torch.device("meta"):
        net = timestepper.attach(create_model("cifar/resnet8"), controller)
        found = timestepper.summary(net, (3, 32, 32))
        influence = timestepper.descriptor_influence(net)
    unknown = {"step_sizes": (math.nan,), "evolution_time": math.nan}
    stages = tuple(replace(stage, **unknown) for stage in expected.stages)
    assert str(found) == str(replace(expected, stages=stages))
    assert replace(found, stages=()) == replace(expected, stages=())
    assert str(influence) == "{'layer1': nan, 'layer2': nan, 'layer3': nan}"


def test_the_influence_of_the_weights_is_measured():
    net = timestepper.attach(create_model("cifar/resnet20"))
    assert min(timestepper.descriptor_influence(net).values()) > 0
    for controller in net.controllers.values():
        torch.nn.init.zeros_(controller.input_weight)
    blind = timestepper.attach(create_model("cifar/resnet20"), "independent")
    for reads_nothing in (net, blind):
        assert timestepper.descriptor_influence(reads_nothing) == {"layer1": 0.0, "layer2": 0.0, "layer3": 0.0}


def test_the_influence_is_the_same_under_autocast():
    net = timestepper.attach(create_model("cifar/resnet20"))
    expected = timestepper.descriptor_influence(net)
    with torch.autocast("cpu", torch.bfloat16):
        assert timestepper.descriptor_influence(net) == expected


def test_whether_a_controller_tells_blocks_apart_is_measured():
    torch.manual_seed(3)
    model = create_model("cifar/resnet20")
    for block in model.layer1[1:]:
        block.load_state_dict(model.layer1[0].state_dict())
    net = timestepper.attach(model, descriptor="visible")
    assert timestepper.descriptor_influence(net)["layer1"] > 1e-2  # read, with nothing to tell apart
    apart = timestepper.descriptor_influence(net, shown="mean")
    assert apart["layer1"] < 1e-6 < 1e-3 < min(apart["layer2"], apart["layer3"])
    with pytest.raises(timestepper.errors.UnknownNameError, match="unknown replacement 'ones'"):
        timestepper.descriptor_influence(net, shown="ones")


def test_an_influence_that_only_lowers_step_sizes_is_one():
    net = timestepper.attach(create_model("cifar/resnet8"), "two_fc")
    for controller in net.controllers.values():
        torch.nn.init.constant_(controller.output_weight, -1.0)
    assert min(timestepper.descriptor_influence(net).values()) > 1e-3


def test_a_visible_descriptor_is_seen():
    found = []
    for descriptor in ("visible", "mean"):
        torch.manual_seed(2)
        net = timestepper.attach(create_model("cifar/resnet20"), descriptor=descriptor)
        found.append(timestepper.descriptor_influence(net))
    seen, hardly = found
    assert all(seen[stage] > 5 * hardly[stage] for stage in seen)


def test_inspect_prints_json(cli):
    found = json.loads(cli("inspect", "cifar/resnet20", "--controller", "two_fc", "--json").out)
    assert found["name"] == "cifar/resnet20"
    assert found["controller"] == "two_fc"
    assert [stage["descriptor"] for stage in found["stages"]] == [288, 576, 1152]


def test_inspect_shows_what_was_discovered_and_what_not(cli):
    found = json.loads(cli("inspect", "timm/test_mambaout", "--input-size", "64", "--json").out)
    assert len(found["discovered"]["sites"]) == sum(len(stage["sites"]) for stage in found["stages"]) == 6
    assert {"stage", "site", "absorbing layer", "rule", "proved error"} == set(found["discovered"]["sites"][0])
    text = cli("inspect", "torchvision/mobilenet_v3_small", "--input-size", "64").out
    assert "features.3.block.2.1   weight*dt, bias*dt" in text


def test_inspect_prints_a_table(cli):
    text = cli("inspect", "cifar/densenet40").out
    assert "block3.11" in text
    assert "parameters" in text
    assert "T = 1" in text


def test_a_mistake_is_one_line_on_stderr_and_exit_2(cli):
    result = cli("inspect", "cifar/resnet21")
    assert result.code == 2
    assert result.out == ""
    assert result.err == "error: cifar/resnet21: a CIFAR ResNet has 6n+2 layers (8, 14, 20, 32, 56, 110, ...), not 21\n"
    shown = cli("inspect", "cifar/resnet21", "--debug")
    assert shown.code == 2
    assert shown.err.startswith("Traceback (most recent call last)")
    assert shown.err.endswith(result.err)


def test_help_does_not_import_torch():
    code = "import sys, timestepper.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_network_in_another_precision_is_counted_too():
    """Gates make the image meet a bias of their own precision."""
    net = timestepper.attach(create_model("timm/seresnet18"))
    expected = timestepper.summary(net, (3, 32, 32)).gflops
    assert timestepper.summary(net.double(), (3, 32, 32)).gflops == expected
