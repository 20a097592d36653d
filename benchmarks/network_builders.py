"""Networks of networks.json with random weights, each with an example of its input and a loss."""

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from timestepper.sites.example import calls_of


def build(library: str, name: str):
    """(network, example, loss of the network)."""
    return {"timm": from_timm, "torchvision": from_torchvision, "transformers": from_transformers}[library](name)


def from_timm(name: str):
    """With small images, where the network takes them."""
    import timm

    for options, pixels in (({}, 96), ({"img_size": 96}, 96), ({}, 128), ({"img_size": 128}, 128), ({}, None)):
        try:
            net = timm.create_model(name, **options).eval()
            channels, *size = net.pretrained_cfg["input_size"]
            example = torch.randn(2, channels, *([pixels] * 2 if pixels else size))
            with torch.no_grad():
                net(example)
            break
        except Exception:  # of a foreign network, which can raise anything
            if pixels is None:
                raise
    return net, example, lambda net: squares(net(example))


def from_torchvision(name: str):
    from torchvision import models

    kinds = {kind: getattr(models, kind) for kind in ("segmentation", "detection", "video")}
    kind = next((kind for kind, module in kinds.items() if name in models.list_models(module=module)), "")
    if kind == "detection":
        # With random weights everything that is proposed is an object, and the heads would run hundreds of times.
        few = {"rpn_post_nms_top_n_train": 20, "rpn_post_nms_top_n_test": 20, "box_detections_per_img": 4}
        options = few if "rcnn" in name else {}
        return detection(models.get_model(name, weights=None, weights_backbone=None, num_classes=3, **options))
    options = {"weights_backbone": None, "num_classes": 3} if kind == "segmentation" else {}
    pixels = 64
    if name.startswith("vit_"):
        pixels = options["image_size"] = 56 if name.endswith("14") else 64
    if name.startswith(("maxvit", "mvit")):
        pixels = 224
    frames = () if kind != "video" else (16,) if name.startswith("mvit") else (4,)
    net = models.get_model(name, weights=None, **options)
    batch = 1 if name.startswith("mvit") else 2  # one video is a minute's work
    example = torch.randn(batch, 3, *frames, pixels, pixels)
    return net, example, lambda net: squares(net(example))


def detection(net: nn.Module):
    images = [torch.rand(3, 96, 96), torch.rand(3, 96, 96)]
    inside = net.transform
    inside.min_size, inside.max_size = (96,), 128
    targets = [{"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]]), "labels": torch.tensor([1])} for _ in images]
    for target in targets:
        target["masks"] = torch.ones(1, 96, 96, dtype=torch.uint8)
        target["keypoints"] = torch.tensor([[[20.0, 20.0, 1.0]] * 17])
    return net, (images,), lambda net: sum(net(images, targets).values())


def from_transformers(name: str):
    import transformers

    return tiny(transformers, name), None, lambda net: squares(net(**calls_of(net)[-1].kwargs))


SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {**SHAPE, **IDS, "max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {**SHAPE, "image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [16, 32], "depths": [2, 2]}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SEGFORMER = {"num_encoder_blocks": 2, "num_attention_heads": [2, 4], "sr_ratios": [2, 1], "patch_sizes": [7, 3]}
SEGFORMER |= {**STAGES, "strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, **IDS, "decoder_start_token_id": 0}
IMAGES, MASKED, CAUSAL = "ForImageClassification", "ForMaskedLM", "ForCausalLM"
TINY: dict[str, tuple[str, dict]] = {
    "ResNet": (IMAGES, {**STAGES, "embedding_size": 8}),
    "ViT": (IMAGES, IMAGE),
    "DeiT": (IMAGES, IMAGE),
    "Swin": (IMAGES, SWIN),
    "ConvNext": (IMAGES, {**STAGES, "num_stages": 2, "image_size": 32}),
    "Dinov2": (IMAGES, {**IMAGE, "mlp_ratio": 2}),
    "CLIP": ("Model", {"text_config": {**TEXT}, "vision_config": IMAGE, "projection_dim": 16}),
    "Segformer": (IMAGES, SEGFORMER),
    "Bert": (MASKED, TEXT),
    "Roberta": (MASKED, TEXT),
    "T5": ("ForConditionalGeneration", T5),
    "GPT2": ("LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **IDS}),
    "OPT": (CAUSAL, {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "Llama": (CAUSAL, GROUPED),
    "Mistral": (CAUSAL, GROUPED),
    "Qwen3": (CAUSAL, GROUPED),
    "Gemma2": (CAUSAL, GROUPED),
    "GPTNeoX": (CAUSAL, TEXT),
    "Olmo2": (CAUSAL, {**TEXT, "num_key_value_heads": 2}),
}
"""Networks of transformers: what their class is called behind their name, and a tiny configuration."""


def tiny(transformers, name: str) -> nn.Module:
    """One of them."""
    head, options = TINY[name]
    return getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**options))


def floating(output) -> list[Tensor]:
    """All floating tensors of an output."""
    return [t for t in tree_flatten(output)[0] if isinstance(t, Tensor) and t.is_floating_point()]


def squares(output) -> Tensor:
    """Something that depends on all of an output."""
    return sum((t.float() ** 2).mean() for t in floating(output) if t.requires_grad)
