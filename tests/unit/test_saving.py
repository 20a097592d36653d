"""Controllers and folded weights on disk, and what is said when they do not fit."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file

import timestepper
from timestepper.errors import CheckpointError, MismatchError
from timestepper.models import CifarResNet


def trained(kind="lstm", **options):
    torch.manual_seed(1)
    net = timestepper.attach(CifarResNet(14, num_classes=5, width=8), kind, **options)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net.eval()


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lstm", {}),
        ("lstm", {"reduction": 2}),
        ("lstm", {"descriptor": "visible"}),
        ("two_fc", {}),
        ("independent", {}),
        ("fixed(0.1)", {}),
        ("fixed(0.123456789)", {}),
    ],
)
def test_controllers_come_back(tmp_path, kind, options):
    net = trained(kind, **options)
    timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    base = copy.deepcopy(timestepper.detach(net))
    back = timestepper.load_controllers(base, tmp_path / "steps.safetensors")
    assert torch.equal(back(IMAGES), net(IMAGES))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "steps.json",
        "steps.safetensors",
        "steps.safetensors.sha256",
    ]
    assert json.loads((tmp_path / "steps.json").read_text())["controller"] == kind


def test_folded_weights_have_the_base_keys(tmp_path):
    net = trained()
    path = timestepper.save_folded(net, tmp_path / "plain.safetensors")
    plain = CifarResNet(14, num_classes=5, width=8)
    plain.load_state_dict(load_file(path), strict=True)
    assert torch.equal(plain.eval()(IMAGES), net(IMAGES))
    assert torch.equal(timestepper.load_folded(CifarResNet(14, 5, width=8), path).eval()(IMAGES), net(IMAGES))


def test_the_wrong_network_is_told_which_tensors_do_not_fit(tmp_path):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    other = CifarResNet(14, num_classes=7, width=8)
    before = other.linear.weight.clone()
    with pytest.raises(
        MismatchError, match=r"plain.safetensors does not fit CifarResNet: .*linear.bias is \(5,\), not \(7,\)"
    ):
        timestepper.load_folded(other, path)
    assert torch.equal(other.linear.weight, before)
    with pytest.raises(MismatchError, match=r"layer1.2.conv1.weight is missing.* and \d+ more"):
        timestepper.load_folded(CifarResNet(20, num_classes=5, width=8), path)


def test_controllers_of_another_network_are_refused(tmp_path):
    timestepper.save_controllers(trained(), tmp_path / "steps.safetensors")
    with pytest.raises(
        MismatchError, match=r"made for CifarResNet whose stage layer1 is .*'channels': 8.*has .*'channels': 4"
    ):
        timestepper.load_controllers(CifarResNet(14, width=4), tmp_path / "steps.safetensors")


def test_damage_is_noticed(tmp_path):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; the file is damaged"):
        timestepper.load_folded(CifarResNet(14, 5, width=8), path)
    with pytest.raises(CheckpointError, match=r"cannot be verified: .*No such file"):
        timestepper.load_folded(CifarResNet(14, 5, width=8), tmp_path / "nothing.safetensors")


def test_a_description_of_another_format_is_refused(tmp_path):
    timestepper.save_controllers(trained(), tmp_path / "steps.safetensors")
    (tmp_path / "steps.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match=r"steps.json: format 99 is not 1; update timestepper"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), tmp_path / "steps.safetensors")
    (tmp_path / "steps.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"steps.json: cannot be read as the description of controllers"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), tmp_path / "steps.safetensors")
