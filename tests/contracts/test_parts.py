"""Whichever part of a network is called, and from wherever, it runs with its step sizes."""

from collections import OrderedDict

import literal
import pytest
import timm
import torch
import torchvision
from families import FAMILIES, SMALL
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.segmentation.fcn import FCN, FCNHead
from training import batch, bits, fits_its_fold, gradients, plain, same, small, train

import timestepper
from timestepper.models import CifarResNet


def test_single_parts_run_with_their_step_sizes_and_gradients():
    """Called one after the other, from outside, they are the network."""
    net = small()
    expected, logits = gradients(net), net.eval()(batch()[0])

    def by_hand(x):
        x = torch.relu(net.bn1(net.conv1(x)))
        for stage in (net.layer1, net.layer2, net.layer3):
            for block in stage:
                x = block(x)
        return net.linear(x.mean((2, 3)))

    torch.testing.assert_close(by_hand(batch()[0]), logits)
    net.train().zero_grad()
    net.load_state_dict(small().state_dict())  # statistics as they were
    torch.nn.functional.cross_entropy(by_hand(batch()[0]), batch()[1]).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-6, msg=name)


def test_one_layer_alone_agrees_with_the_literal_paper():
    """dt * BN(x), and the gradient of the controller through it."""
    torch.manual_seed(0)
    net = timestepper.attach(plain().double(), "independent")
    twin = literal.make_literal(plain().double(), "independent")
    for stage in ("layer1", "layer2", "layer3"):
        nn.init.normal_(net.controllers[stage].logit)
        twin.get_parameter(f"{stage}.controller.logit.0").data.copy_(net.controllers[stage].logit[0])
    features = torch.randn(3, 8, 8, 8, dtype=torch.float64)
    layer, logit = net.layer1[0].bn2, net.controllers["layer1"].logit
    literal_logit = twin.get_parameter("layer1.controller.logit.0")
    found = layer(features)
    scaled = literal_logit.sigmoid().view(1, -1, 1, 1) * nn.functional.batch_norm(features, None, None, training=True)
    torch.testing.assert_close(found, scaled)
    found.square().sum().backward()
    scaled.square().sum().backward()
    torch.testing.assert_close(logit.grad[0], literal_logit.grad)
    torch.testing.assert_close(net.layer2(net.layer1(features)), twin.layer2(twin.layer1(features)))


def test_a_forward_that_is_called_directly_computes_step_sizes_once():
    net, calls = small().eval(), []
    for controller in net.controllers.values():
        controller.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(net.forward(batch()[0]), net(batch()[0]))
    assert len(calls) == 2 * 3


class Doubled(nn.Module):
    """A network of two attached ones."""

    def __init__(self):
        super().__init__()
        self.left, self.right = small(), train(timestepper.attach(plain(), "two_fc"))

    def forward(self, x):
        return self.left(x) - self.right(x)


def test_two_attached_parts_of_one_model():
    model = Doubled()
    images, labels = batch()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        expected = timestepper.fold(model.left)(images) - timestepper.fold(model.right)(images)
        assert torch.equal(model(images), expected)
    twin = Doubled().eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images), expected)


def test_one_network_twice_in_a_forward():
    """As in contrastive learning: both passes train it."""
    net = small().eval()
    images, _ = batch()
    (net(images[:2]) - net(images[2:])).square().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    logits = net(images)
    (logits[:2] - logits[2:]).square().sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


class Recursive(CifarResNet):
    """Enters itself in the middle of its own forward, as a network that looks at a coarse image first."""

    def forward(self, x):
        if x.shape[-1] <= 16:
            return super().forward(x)
        features = self.layer1(torch.relu(self.bn1(self.conv1(x))))
        coarse = self(x[..., ::2, ::2])
        return coarse + self.linear(self.layer3(self.layer2(features)).mean((2, 3)))


def test_a_network_that_enters_itself():
    net, calls = small(Recursive).eval(), []
    assert fits_its_fold(net)
    handles = [controller.register_forward_hook(lambda *_: calls.append(1)) for controller in net.controllers.values()]
    net(batch()[0])
    assert len(calls) == 2 * 3  # one pass inside the other, and no layer alone
    for handle in handles:
        handle.remove()
    other = small().eval()
    images, labels = batch()
    torch.nn.functional.cross_entropy(other(images) + other(images[..., ::2, ::2]), labels).backward()
    for name, gradient in gradients(net).items():
        torch.testing.assert_close(gradient, other.get_parameter(name).grad, rtol=1e-3, atol=1e-5, msg=name)


def test_a_block_in_two_places_has_one_step_size():
    """Blocks that share their weights over depth, as in an unrolled differential equation."""
    model = CifarResNet(14, num_classes=5, width=8)
    model.layer1[1] = model.layer1[0]
    net = train(timestepper.attach(model))
    assert len(timestepper.step_sizes(net)["layer1"]) == 1
    assert fits_its_fold(net)
    assert timestepper.fold(net).layer1[1].bn2.weight is not model.layer1[1].bn2.weight


def sequential() -> nn.Sequential:
    body = plain()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), body.linear)
    return nn.Sequential(
        OrderedDict(stem=body.conv1, norm=body.bn1, one=body.layer1, two=body.layer2, three=body.layer3, head=head)
    )


def test_a_network_that_is_a_sequential():
    model = sequential()
    names, keys, length = [name for name, _ in model.named_children()], list(model.state_dict()), len(model)
    net = train(timestepper.attach(model))
    assert len(net) == length
    assert list(net) == [net.get_submodule(name) for name in names]
    assert net[0] is net.stem
    assert net[-1] is net.head
    assert [name for name, _ in net[:2].named_children()] == names[:2]
    assert type(net[:2]) is nn.Sequential
    assert fits_its_fold(net)
    assert list(timestepper.fold(net).state_dict()) == keys
    assert type(timestepper.detach(net)) is nn.Sequential


class Pyramid(nn.ModuleDict):
    """A network that is a dictionary, as timm's features_only are."""

    def forward(self, x):
        for part in self.values():
            x = part(x)
        return x


def test_a_network_that_is_a_dictionary():
    net = timestepper.attach(Pyramid(OrderedDict(sequential().named_children())))
    assert list(net) == list(net.keys()) == ["stem", "norm", "one", "two", "three", "head"]
    assert "controllers" not in dict(net.items())
    assert len(net) == 6
    assert fits_its_fold(train(net))


def test_features_of_a_timm_network():
    torch.manual_seed(0)
    net = timestepper.attach(timm.create_model("resnet18", features_only=True, **{**SMALL, "num_classes": 0}))
    for _ in range(2):
        sum(features.mean() for features in net(batch()[0])).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    net.eval()
    with torch.no_grad():
        for found, expected in zip(net(batch()[0]), timestepper.fold(net)(batch()[0]), strict=True):
            assert torch.equal(found, expected)
    assert all(parameter.grad is not None for parameter in net.controllers.parameters())


def intermediate(model: nn.Module) -> IntermediateLayerGetter:
    return IntermediateLayerGetter(model, {"layer1": "early", "layer4": "out"})


def test_torchvision_s_intermediate_layers_of_an_attached_network():
    """It takes the network apart and calls its children itself."""
    net = train(timestepper.attach(FAMILIES["torchvision resnet18"]())).eval()
    images, _ = batch()
    with torch.no_grad():
        found, expected = intermediate(net)(images), intermediate(timestepper.fold(net))(images)
    assert list(found) == ["early", "out"]
    assert same(dict(found), dict(expected))


def segmentation() -> FCN:
    torch.manual_seed(0)
    backbone = IntermediateLayerGetter(FAMILIES["torchvision resnet18"](), {"layer4": "out"})
    return FCN(backbone, FCNHead(512, 3))


def test_torchvision_s_segmentation():
    """Attached to the whole, to its backbone, and to the network that the backbone was cut from."""
    images, _ = batch(pixels=64)
    net = timestepper.attach(segmentation())
    train_segmentation(net, images)
    twin = segmentation()
    timestepper.attach(twin.backbone)
    twin.load_state_dict({_inside_backbone(key): value for key, value in net.state_dict().items()})
    net.eval(), twin.eval()
    with torch.no_grad():
        expected = timestepper.fold(net)(images)["out"]
        assert torch.equal(net(images)["out"], expected)
        assert torch.equal(twin(images)["out"], expected)


def _inside_backbone(key: str) -> str:
    head, _, rest = key.partition(".")
    return f"backbone.controllers.{rest.replace('backbone_', '')}" if head == "controllers" else key


def train_segmentation(net, images):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2):
        net(images)["out"].square().mean().backward()
        optimiser.step()
    assert all(parameter.grad is not None for parameter in net.controllers.parameters())


def test_torchvision_s_detection():
    """Its forward takes lists, in training losses come out."""
    torch.manual_seed(0)
    body = FAMILIES["torchvision resnet18"]()
    backbone = nn.Sequential(OrderedDict(list(body.named_children())[:-2]))
    backbone.out_channels = 512
    anchors = AnchorGenerator(sizes=((16,),), aspect_ratios=((1.0,),))
    pool = torchvision.ops.MultiScaleRoIAlign(["0"], output_size=2, sampling_ratio=1)
    sizes = {"min_size": 64, "max_size": 64, "box_detections_per_img": 3}
    net = timestepper.attach(
        FasterRCNN(backbone, num_classes=2, rpn_anchor_generator=anchors, box_roi_pool=pool, **sizes)
    )
    images = list(batch(pixels=64)[0][:2])
    targets = [{"boxes": torch.tensor([[8.0, 8, 40, 40]]), "labels": torch.tensor([1])} for _ in images]
    sum(net(images, targets).values()).backward()
    assert all(parameter.grad is not None for parameter in net.controllers.parameters())
    before = bits(net)
    net.eval()
    with torch.no_grad():
        found, expected = net(images), timestepper.fold(net)(images)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert same(bits(net), before)


@pytest.mark.parametrize("family", ["timm resnet18", "timm seresnet50"])
def test_the_features_of_timm_s_networks(family):
    net = train(timestepper.attach(FAMILIES[family]())).eval()
    folded, (images, _) = timestepper.fold(net), batch()
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if "seresnet" in family else {"rtol": 0, "atol": 0}
    with torch.no_grad():
        torch.testing.assert_close(net.forward_features(images), folded.forward_features(images), **tolerance)
        found, expected = net.forward_intermediates(images), folded.forward_intermediates(images)
        torch.testing.assert_close(found, expected, **tolerance)
