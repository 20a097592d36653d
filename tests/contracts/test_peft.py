"""LoRA by PEFT, before attach and after: inside a branch it trains; where the step size enters it does not."""

import copy

import peft
import pytest
import torch
from families import FAMILIES
from training import batch, bits, fits_its_fold, gradients, same, small, train
from transformers import LlamaConfig, LlamaForCausalLM

import timestepper
from timestepper.errors import MismatchError, NotAttachedError, UnsupportedSiteError

INSIDE = peft.LoraConfig(r=2, target_modules=r"layer\d\.0\.conv1")


def trained(net):
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)  # which begins at zero
    return train(net)


def test_inside_a_branch_after_attach():
    net = small()
    adapted = peft.get_peft_model(net, INSIDE)
    assert adapted.base_model.model is net
    names = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert names
    assert all("lora_" in name for name in names)
    before = bits(net)
    trained(adapted)
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert any("lora_A" in name for name in moved)
    assert not any("bn2.weight" in name or name.startswith("controllers.") for name in moved)
    assert fits_its_fold(net)


def test_inside_a_branch_before_attach():
    model = timestepper.detach(small())
    peft.inject_adapter_in_model(INSIDE, model)
    net = trained(timestepper.attach(model))
    assert all(gradient.any() for name, gradient in gradients(net).items() if "lora_" in name)
    assert fits_its_fold(net)
    assert any("lora_A" in name for name in timestepper.fold(net).state_dict())


@pytest.mark.parametrize("before", [True, False], ids=["before attach", "after attach"])
def test_folded_first_and_merged_then_it_is_the_same_network(before):
    """Merged first, the controllers would read other weights than they were trained on."""
    net = timestepper.detach(small()) if before else small()
    adapted = peft.get_peft_model(net, INSIDE)
    if before:
        timestepper.attach(net)
    trained(adapted).eval()
    with pytest.raises(NotAttachedError, match=r"its part base_model\.model has some: pass that one"):
        timestepper.fold(adapted)
    folded = timestepper.fold(net)
    for module in folded.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
    with torch.no_grad():
        torch.testing.assert_close(folded(batch()[0]), adapted(batch()[0]), rtol=1e-4, atol=1e-5)


def test_merged_and_unloaded_it_is_an_attached_network_again():
    net = small()
    merged = trained(peft.get_peft_model(net, INSIDE)).merge_and_unload()
    assert merged is net
    assert list(merged.state_dict()) == list(small().state_dict())
    assert fits_its_fold(merged)


def test_controllers_and_lora_train_together():
    net = small()
    config = peft.LoraConfig(r=2, target_modules=r"layer\d\.0\.conv1", modules_to_save=["linear"])
    adapted = peft.get_peft_model(net, config)
    net.controllers.requires_grad_(True)
    found = gradients(adapted)
    assert any("controllers." in name and gradient.any() for name, gradient in found.items())
    assert any("lora_B" in name and gradient.any() for name, gradient in found.items())


def test_controllers_that_are_saved_beside_the_adapters_come_back(tmp_path):
    """PEFT itself saves its adapters alone."""
    net = small()
    base = timestepper.detach(small())
    adapted = peft.get_peft_model(net, INSIDE)
    net.controllers.requires_grad_(True)
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 0.0  # statistics are none of PEFT's
    trained(adapted).eval()
    adapted.save_pretrained(tmp_path)
    timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    timestepper.load_controllers(base, tmp_path / "steps.safetensors")
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.equal(again(batch()[0]), adapted(batch()[0]))


IDS = torch.arange(12).view(2, 6)
AT_THE_END = peft.LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval()


def test_on_the_layer_that_takes_the_step_size_it_goes_on_first_in_a_discovered_network():
    """The step size then enters both of its ends, the base's and the adapter's."""
    net, ids = llama(), IDS
    adapted = peft.get_peft_model(net, AT_THE_END).eval()
    timestepper.attach(net, "fixed(0.5)")
    folded = timestepper.fold(net)
    logits = adapted(ids).logits
    assert torch.equal(folded(ids).logits, logits)
    for layer in timestepper.detach(net).model.layers:
        layer.self_attn.register_forward_hook(lambda _, __, out: (out[0] / 2, *out[1:]))
        layer.mlp.register_forward_hook(lambda _, __, out: out / 2)
    torch.testing.assert_close(adapted(ids).logits, logits)


@pytest.mark.parametrize("by", ["PEFT", "transformers"])
def test_adapters_that_take_step_sizes_are_saved_as_they_were_trained(by, tmp_path):
    """Folded ones on a base that is not would take their step sizes twice, and the base none."""

    def network():
        if by == "PEFT":
            return peft.get_peft_model(llama(), AT_THE_END)
        net = llama()
        net.add_adapter(AT_THE_END)
        return net

    net = timestepper.attach(network().eval(), "fixed(0.5)", example={"input_ids": IDS})
    net.save_pretrained(tmp_path)
    base = llama()
    again = peft.PeftModel.from_pretrained(base, tmp_path) if by == "PEFT" else base
    if by == "transformers":
        base.load_adapter(tmp_path)
    timestepper.load_controllers(again.eval(), tmp_path / "timestepper.safetensors", example={"input_ids": IDS})
    assert torch.equal(again(IDS).logits, net(IDS).logits)


def test_another_adapter_on_the_layer_that_takes_the_step_size_is_refused_by_name():
    """It was not active when the branch was proved, and would run as if there were no step size."""
    adapted = peft.get_peft_model(llama(), AT_THE_END)
    adapted.add_adapter("other", AT_THE_END)
    net = timestepper.attach(adapted.base_model.model, "fixed(0.5)")
    expected = adapted(IDS).logits
    with adapted.disable_adapter():
        net(IDS)
    adapted.set_adapter("other")
    for use in (lambda: adapted(IDS), lambda: timestepper.fold(net), lambda: copy.deepcopy(net)(IDS)):
        with pytest.raises(MismatchError, match=r"mlp\.down_proj runs the adapter .*other.* in place of .*default"):
            use()
    adapted.set_adapter("default")
    assert torch.equal(adapted(IDS).logits, expected)


def test_on_the_layer_that_takes_the_step_size_it_is_refused_by_name():
    """DenseNet's branches end in a convolution."""
    config = peft.LoraConfig(r=2, target_modules=r"block1\.0\.conv")
    model = FAMILIES["densenet"]()
    peft.inject_adapter_in_model(config, model)
    with pytest.raises(UnsupportedSiteError, match=r"block1\.0\.conv: the branch ends in Conv2d, which cannot take"):
        timestepper.attach(model)
    net = timestepper.attach(FAMILIES["densenet"]())
    before = bits(net)
    peft.inject_adapter_in_model(config, net)
    with pytest.raises(MismatchError, match=r"block1\.0\.conv was wrapped in Conv2d since attach"):
        net(batch()[0])
    assert same(
        {name: value for name, value in bits(net).items() if name in before},
        {name: value for name, value in before.items() if name in net.state_dict()},
    )
