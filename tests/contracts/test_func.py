"""torch.func: an attached network is a function of its parameters, controllers included."""

import pytest
import torch
from families import KINDS
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from training import batch, bits, gradients, plain, same, small, train

import timestepper
from timestepper.models import CifarResNet


def parameters_of(net) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_functional_call_and_grad_with_other_parameters(kind):
    """As in meta-learning; the network itself stays as it is."""
    net = train(timestepper.attach(plain(), kind)).eval()
    twin = timestepper.attach(plain(), kind).eval()
    images, labels = batch()
    others = {name: parameter * 1.1 for name, parameter in parameters_of(net).items()}
    twin.load_state_dict(bits(net) | others)
    before = bits(net)
    found = grad(lambda chosen: F.cross_entropy(functional_call(net, chosen, (images,)), labels))(others)
    for name, expected in gradients(twin).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-7, msg=name)
    assert same(bits(net), before)


def test_functional_call_of_some_parameters_and_of_one_part():
    net = small().eval()
    features, images = torch.randn(2, 8, 8, 8), batch()[0]
    weight = net.layer1[0].bn2.weight.detach()
    doubled = {"layer1.0.bn2.weight": 2 * weight}
    part, whole = (
        functional_call(net.layer1, {"0.bn2.weight": 2 * weight}, features),
        functional_call(net, doubled, images),
    )
    with torch.no_grad():
        net.layer1[0].bn2.weight.mul_(2)
    torch.testing.assert_close(part, net.layer1(features))
    torch.testing.assert_close(whole, net(images))


class Doubling(CifarResNet):
    """Runs its own stage with other parameters than it has, in the middle of its forward."""

    def forward(self, x):
        doubled = {"0.bn2.weight": 2 * self.layer1[0].bn2.weight}
        x = functional_call(self.layer1, doubled, torch.relu(self.bn1(self.conv1(x))))
        return self.linear(self.layer3(self.layer2(x)).mean((2, 3)))


def test_functional_call_of_a_part_inside_a_pass():
    net, twin = small(Doubling).eval(), small().eval()
    found = gradients(net)
    with torch.no_grad():
        twin.layer1[0].bn2.weight.mul_(2)
    expected = gradients(twin)
    expected["layer1.0.bn2.weight"] *= 2
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_gradients_of_every_sample():
    net = small().eval()
    images, labels = batch()

    def loss(chosen, image, label):
        return F.cross_entropy(functional_call(net, chosen, (image[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters_of(net), images, labels)
    for number in range(2):
        expected = gradients(net, images[number : number + 1], labels[number : number + 1])
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name][number], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_an_ensemble():
    """Parameters of several networks stacked, one of them as the skeleton."""
    nets = [small().eval(), train(small(), steps=1).eval()]
    images, _ = batch()
    stacked, buffers = stack_module_state(nets)
    found = vmap(lambda p, b: functional_call(nets[0], (p, b), (images,)))(stacked, buffers)
    for net, logits in zip(nets, found, strict=True):
        torch.testing.assert_close(logits, net(images), rtol=1e-3, atol=1e-4)


def test_second_derivatives():
    """A gradient penalty reaches the controllers."""
    net = small().eval()
    images = batch()[0].requires_grad_()
    (slope,) = torch.autograd.grad(net(images).square().sum(), images, create_graph=True)
    slope.square().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert found["controllers.layer3.output_bias"].any()
