"""Networks that leave Python: torch.export, ONNX, AOTInductor, traces. Attached they carry their step sizes along."""

import copy
import warnings

import onnxruntime
import pytest
import torch
import torchvision
from families import FAMILIES
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor
from training import batch, bits, fits_its_fold, plain, same, small, tiny, train

import timestepper
from timestepper.errors import WrappedModelError
from timestepper.models import CifarResNet


@pytest.fixture(scope="module", params=["attached", "folded"])
def net(request):
    net = small().eval()
    return net if request.param == "attached" else timestepper.fold(net)


@pytest.fixture(scope="module")
def expected():
    with torch.no_grad():
        return small().eval()(batch()[0])


@pytest.mark.parametrize("strict", [True, False])
def test_torch_export(net, expected, strict):
    size = torch.export.Dim("size", min=2)
    program = torch.export.export(net, (batch()[0],), dynamic_shapes=({0: size},), strict=strict)
    torch.testing.assert_close(program.module()(batch()[0]), expected)
    torch.testing.assert_close(program.module()(batch()[0][:3]), expected[:3])
    assert set(program.state_dict) == set(net.state_dict())


def test_an_exported_network_can_be_trained():
    """Step sizes are computed in the program, not written into it."""
    net = small().eval()
    program = torch.export.export(net, (batch()[0],)).module()
    with torch.no_grad():
        for model in (net, program):
            for parameter in model.parameters():
                parameter.mul_(1.1)
    torch.testing.assert_close(program(batch()[0]), net(batch()[0]))
    assert fits_its_fold(net)


@pytest.mark.filterwarnings("ignore")  # torch's, about the age of its traces
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx(net, expected, tmp_path, dynamo):
    torch.onnx.export(net, (batch()[0],), tmp_path / "net.onnx", dynamo=dynamo, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: batch()[0].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # torch's, about the age of its exporter
@pytest.mark.parametrize("kind", ["two_fc", "independent", "depth(0.5)", "gain"])
def test_the_older_exporter_knows_what_other_kinds_compute_with(kind, tmp_path):
    net, images = timestepper.attach(CifarResNet(8, width=8), kind).eval(), torch.ones(2, 3, 8, 8)
    torch.onnx.export(net, (images,), tmp_path / "net.onnx", dynamo=False, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(images), rtol=1e-3, atol=1e-4)


def test_aot_inductor(tmp_path):
    net = train(tiny()).eval()
    program = torch.export.export(net, (batch()[0],))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    torch.testing.assert_close(loaded(batch()[0]), net(batch()[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # torch's, about the age of its traces
def test_a_trace(net, expected):
    traced = torch.jit.trace(net, batch()[0], check_trace=False)
    torch.testing.assert_close(traced(batch()[0][:2]), expected[:2])


@pytest.mark.parametrize("kind", ["lstm", "channel(0.1)", "gain"])
def test_a_trace_has_no_warning_of_ours(kind):
    """Sizes are tensors while torch.jit traces, and who asks whether they differ is told of a wrong trace."""
    net = timestepper.attach(CifarResNet(8, width=8), kind).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(net, torch.ones(2, 3, 8, 8), check_trace=False)
    images = torch.ones(3, 3, 8, 8)
    torch.testing.assert_close(traced(images), net(images))


def test_fx_keeps_stepped_layers_whole():
    """As leaves of the graph they go on to compute their step sizes."""
    net = small().eval()
    traced = torch.fx.symbolic_trace(net)
    with torch.no_grad():
        torch.testing.assert_close(traced(batch()[0]), net(batch()[0]))
        for parameter in net.parameters():
            parameter.mul_(1.1)
        torch.testing.assert_close(traced(batch()[0]), net(batch()[0]))


def test_a_feature_extractor_has_the_controllers_among_its_parameters():
    net = timestepper.attach(torchvision.models.resnet18(num_classes=5)).eval()
    extractor = create_feature_extractor(net, {"layer2": "second", "layer4": "fourth"})
    assert {id(p) for p in extractor.parameters()} >= {id(p) for p in timestepper.controller_parameters(net)}
    copied, images = copy.deepcopy(extractor), batch()[0]
    optimiser = torch.optim.SGD(extractor.parameters(), 0.5)
    before = timestepper.step_sizes(net)
    extractor.train()(images)["fourth"].square().mean().backward()
    optimiser.step()
    assert not same(timestepper.step_sizes(net), before)
    folded = create_feature_extractor(timestepper.fold(net), {"layer2": "second", "layer4": "fourth"})
    copied.load_state_dict(extractor.state_dict())
    for made in (extractor, copied):
        assert same(made.eval()(images), folded.eval()(images))


def test_a_graph_cannot_be_attached_to():
    graph = torch.fx.symbolic_trace(plain())
    before = bits(graph)
    with pytest.raises(WrappedModelError, match=r"is a graph of torch\.fx.*attach to the Python network"):
        timestepper.attach(graph)
    assert same(bits(graph), before)


class IntoConvolutions(torch.fx.Tracer):
    def is_leaf_module(self, module, path):
        return not isinstance(module, nn.Conv2d) and super().is_leaf_module(module, path)


def test_fx_that_looks_into_stepped_layers_is_refused_by_name():
    net = timestepper.attach(FAMILIES["densenet"]()).eval()
    before = bits(net)
    with pytest.raises(WrappedModelError, match=r"torch.fx would write today's step sizes into .*; trace timestepper"):
        IntoConvolutions().trace(net)
    assert same(bits(net), before)
    assert fits_its_fold(net)
    IntoConvolutions().trace(timestepper.fold(net))


def test_gates_and_convolutions_export():
    for family in ("timm seresnet18", "densenet"):
        net = train(timestepper.attach(FAMILIES[family]())).eval()
        program = torch.export.export(net, (batch()[0],), strict=False)
        torch.testing.assert_close(program.module()(batch()[0]), net(batch()[0]), rtol=1e-4, atol=1e-4)


def test_a_network_inside_another_exports():
    outer = nn.Sequential(small(), nn.Softmax(1)).eval()
    program = torch.export.export(outer, (batch()[0],))
    torch.testing.assert_close(program.module()(batch()[0]), outer(batch()[0]))


def nodes(net):
    """Of the exported graph: kind, target, arguments, shape and type of the result."""
    graph = torch.export.export(net.eval(), (batch()[0],)).graph
    return [(n.op, str(n.target), str((n.args, n.kwargs)), str(n.meta.get("val"))) for n in graph.nodes]


@pytest.mark.parametrize("family", ["cifar resnet20", "densenet"])
def test_a_folded_network_is_the_plain_one_node_for_node(family):
    plain = FAMILIES[family]()
    assert nodes(timestepper.fold(timestepper.attach(FAMILIES[family]()))) == nodes(plain)
    assert nodes(nn.Sequential(plain, nn.LeakyReLU(0.1))) != nodes(nn.Sequential(plain, nn.LeakyReLU(0.2)))
