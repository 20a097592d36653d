"""The smallest real networks of timm, torchvision and transformers: how many sites each has, all of them proved."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import timm
import torch
import torchvision

import timestepper
from timestepper.errors import NoSitesError

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import networks
from network_builders import tiny

transformers = pytest.importorskip("transformers")

TIMM = {  # name: options, edge of the image, sites
    "test_vit": ({"img_size": 32, "patch_size": 8}, 32, 12),
    "test_vit3": ({"img_size": 32, "patch_size": 8}, 32, 19),
    "test_convnext": ({}, 64, 9),
    "test_convnext2": ({}, 64, 4),
    "test_convnext3": ({}, 64, 4),
    "test_nfnet": ({}, 64, 4),
    "test_byobnet": ({}, 64, 4),
    "test_mambaout": ({}, 64, 6),
    "test_efficientnet_ln": ({}, 64, 0),
    "test_resnet": ({}, 64, 4),
    "mobilenetv3_small_050": ({}, 64, 7),
    "regnetx_002": ({}, 64, 13),
    "ghostnet_050": ({}, 64, 16),
    "rexnet_100": ({}, 64, 11),
    "resnetv2_18": ({}, 64, 8),
    "mixer_s32_224": ({"img_size": 64}, 64, 8),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 1), "num_heads": (1, 2, 4)},
        56,
        6,
    ),
    "swinv2_tiny_window8_256": ({"img_size": 64, "embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2)}, 64, 4),
    "deit3_small_patch16_224": ({"img_size": 32, "embed_dim": 48, "num_heads": 2, "depth": 2}, 32, 4),
    # The first sum of CaiT's class token adds to a parameter, not to a feature.
    "cait_xxs24_224": ({"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 2}, 32, 7),
    # In the MLPs of XCiT's class blocks only one token is a branch: the others are added to themselves.
    "xcit_nano_12_p16_224": ({"img_size": 32, "depth": 1}, 32, 5),
    "levit_128s": ({"img_size": 64}, 64, 20),
    "pvt_v2_b0": ({}, 64, 16),
    "edgenext_xx_small": ({}, 64, 15),
}
TORCHVISION = {  # name: options, shape, sites
    "mobilenet_v2": ({"width_mult": 0.25}, (2, 3, 32, 32), 11),
    "mobilenet_v3_small": ({}, (2, 3, 32, 32), 6),
    "efficientnet_b0": ({}, (2, 3, 32, 32), 9),
    "regnet_x_400mf": ({}, (2, 3, 32, 32), 22),
    "mnasnet0_5": ({}, (2, 3, 32, 32), 10),
    "convnext_tiny": ({}, (2, 3, 32, 32), 18),
    "swin_t": ({}, (1, 3, 32, 32), 24),
    "r3d_18": ({}, (2, 3, 4, 16, 16), 8),
    "mc3_18": ({}, (2, 3, 4, 16, 16), 8),
    "r2plus1d_18": ({}, (2, 3, 4, 16, 16), 8),
}
TRANSFORMERS = {
    "ResNet": 4,
    "ViT": 4,
    "DeiT": 4,
    "Swin": 8,
    "ConvNext": 4,
    "Dinov2": 4,
    "CLIP": 8,
    "Segformer": 8,
    "Bert": 4,
}
TRANSFORMERS |= {
    "Roberta": 4,
    "T5": 10,
    "GPT2": 4,
    "OPT": 4,
    "Llama": 4,
    "Mistral": 4,
    "Qwen3": 4,
    "Gemma2": 4,
    "GPTNeoX": 2,
}
TRANSFORMERS |= {"Olmo2": 4}


def check(net, example, sites: int) -> None:
    found = timestepper.discover(net, example)
    assert len(found.errors) == sites, str(found)
    assert max(found.errors.values(), default=0) < 1e-10
    if sites:
        timestepper.attach(net, "lstm", sites=found)
        assert sum(len(dt) for dt in timestepper.step_sizes(net).values()) == sites
        share = sum(p.numel() for p in timestepper.controller_parameters(net))
        assert share <= 0.1 * (sum(p.numel() for p in net.parameters()) - share)


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    options, pixels, sites = TIMM[name]
    check(timm.create_model(name, num_classes=5, **options), torch.randn(2, 3, pixels, pixels), sites)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    options, shape, sites = TORCHVISION[name]
    net = torchvision.models.get_model(name, num_classes=5, **options)
    check(net, torch.randn(shape), sites)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    """Without an example: one is made from the configuration."""
    check(tiny(transformers, name), None, TRANSFORMERS[name])


def test_experts_may_compute_in_a_function_that_has_no_float64():
    """The attention of Mixtral gets its steps; its experts' outputs are scattered, which no layer can absorb."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, num_local_experts=4)
    check(transformers.MixtralForCausalLM(config), None, 2)


def test_a_layer_that_multiplies_with_its_transposed_weight():
    """As Falcon's linear layers do; its attention and its MLP end in one sum, and share a step."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    net = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes))
    found = timestepper.discover(net)
    assert [site.descriptor for site in found.stages[0].sites] == [32 + 16 + 64 + 16] * 2  # the outputs of four layers
    check(net, None, 2)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "T5"])
def test_attached_and_folded_networks_write_the_same(name):
    torch.manual_seed(1)
    net = tiny(transformers, name).eval()
    ids = torch.randint(3, 99, (2, 6))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = net.generate(ids, **options)
    timestepper.attach(net, "independent")
    for controller in net.controllers.values():
        torch.nn.init.normal_(controller.logit, std=3.0)
    written = net.generate(ids, **options)
    assert torch.equal(written, timestepper.fold(net).generate(ids, **options))
    with timestepper.frozen_steps(net):
        assert torch.equal(net.generate(ids, **options), written)
    assert torch.equal(timestepper.detach(net).generate(ids, **options), plain)


def test_a_network_in_half_precision_says_so_and_writes_as_its_fold():
    """transformers ask a network for its dtype, which is that of its first parameter: never a controller's."""
    torch.manual_seed(1)
    net = timestepper.attach(tiny(transformers, "Llama").eval().bfloat16())
    assert net.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in timestepper.controller_parameters(net)} == {torch.float32}
    ids, options = torch.randint(3, 99, (2, 6)), {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with pytest.warns(UserWarning, match="folded in float32"):
        folded = timestepper.fold(net)
    assert torch.equal(net.generate(ids, **options), folded.generate(ids, **options))


def test_a_network_of_transformers_is_attached_and_folded(attach_and_fold):
    net = tiny(transformers, "GPT2").eval()
    attach_and_fold(net, {"input_ids": torch.randint(99, (2, 6))}, "lstm", reduction=2)


def test_a_network_that_lives_on_hooks_of_its_own_may_have_run_before():
    """A segmentation head of transformers gets its features by hooks, which the first call has put in, once."""
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2], num_encoder_blocks=2, sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, image_size=32,
    )  # fmt: skip
    net = transformers.SegformerForSemanticSegmentation(config).eval()
    images = {"pixel_values": torch.randn(1, 3, 32, 32)}
    with torch.no_grad():
        before = net(**images).logits
    timestepper.attach(net, start="identity")
    with torch.no_grad():
        assert torch.equal(net(**images).logits, before)
    assert timestepper.summary(net, (3, 32, 32)).gflops > 0


def test_the_adapters_of_the_paper_s_families_win():
    net = timm.create_model("resnet18")
    timestepper.attach(net)  # needs no example and no forward
    stages = timestepper.summary(net, (3, 32, 32)).stages
    assert [stage.name for stage in stages] == ["layer1", "layer2", "layer3", "layer4"]
    assert stages[0].descriptor == 2 * 9 * 64
    assert not any(site.entries for stage in net._timestepper.stepping.stages for site in stage.sites)


def test_a_family_with_another_gate_is_discovered():
    """Its adapter refuses the gate of every block; discovery says so too."""
    net = timm.create_model("ecaresnet26t", layers=(1, 1, 1, 1))
    with pytest.raises(NoSitesError, match="no squeeze-excite"), warnings.catch_warnings():
        timestepper.attach(net)


def test_the_page_says_what_was_measured():
    results = json.loads(networks.RESULTS.read_text())
    assert networks.PAGE.read_text() == networks.page(results)
    readme = " ".join((networks.HERE.parent / "README.md").read_text().split())
    for library in ("timm", "torchvision"):
        tried = [result for name, result in results.items() if name.startswith(f"{library}/")]
        assert f"{sum(map(networks.counts, tried))} of {len(tried)}" in readme, library
