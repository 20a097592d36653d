"""The literal implementation against what is known without timestepper's method: plain networks and torch's LSTM."""

import copy

import literal
import pytest
import timm
import torch
import torchvision
from torch import nn

from timestepper.models import CifarResNet, CliqueNet, DenseNet

PLAIN = {
    "timm basic": lambda: timm.create_model("resnet18", layers=(1, 2, 1, 1), channels=(8, 16, 16, 32)),
    "timm bottleneck": lambda: timm.create_model("seresnet50", layers=(1, 2, 1, 1), channels=(8, 16, 16, 32)),
    "torchvision basic": lambda: torchvision.models.resnet18(),
    "torchvision bottleneck": lambda: torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1]),
    "cifar": lambda: CifarResNet(14),
    "dense": lambda: DenseNet(10),
    "clique": lambda: CliqueNet(8, 6),
}


def seen_by(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        return model.eval()(torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_of_one_is_the_plain_network_and_a_half_is_not(name):
    torch.manual_seed(0)
    plain = PLAIN[name]()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    wanted = seen_by(plain)
    for value in (1.0, 0.5):
        network = literal.make_literal(copy.deepcopy(plain), "fixed", value=value)
        assert network.state_dict().keys() == plain.state_dict().keys()
        assert torch.equal(seen_by(network), wanted) == (value == 1.0)


def test_the_written_out_gates_are_those_of_torch():
    torch.manual_seed(0)
    controller = literal.LSTMController(described=10, channels=12, reduction=4, steps=3)
    cell = nn.LSTMCell(3, 3)
    gates = [controller.W_i, controller.W_f, controller.W_g, controller.W_o]
    with torch.no_grad():
        cell.weight_hh.copy_(torch.cat([gate.weight[:, :3] for gate in gates]))
        cell.weight_ih.copy_(torch.cat([gate.weight[:, 3:] for gate in gates]))
        cell.bias_ih.copy_(torch.cat([gate.bias for gate in gates]))
        cell.bias_hh.zero_()
    memory, of_torch = None, None
    for d in range(3):
        described = torch.randn(10)
        dt, memory = controller.step(d, described, memory)
        of_torch = cell(torch.relu(controller.W_in(described)), of_torch)
        torch.testing.assert_close(memory, of_torch)
        torch.testing.assert_close(dt, torch.sigmoid(controller.W_out(of_torch[0])))


def test_averaged_weights_have_the_sizes_of_appendix_b():
    basic = timm.create_model("resnet34")
    bottleneck = timm.create_model("resnet50")
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        assert len(literal.averaged_weights(getattr(basic, f"layer{stage}")[0])) == 3 * 3 * 2 * channels
        assert len(literal.averaged_weights(getattr(bottleneck, f"layer{stage}")[0])) == 5 * channels
