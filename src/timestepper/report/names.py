"""How a reader calls data sets and networks; and which such names there are."""

import re

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet", "digits": "digits"}
PAPER_DATA = ("cifar10", "cifar100", "imagenet")
LIBRARIES = ("timm", "torchvision", "cifar")
_FAMILIES = {
    "resnet": "ResNet",
    "nf_resnet": "norm-free ResNet",
    "densenet": "DenseNet",
    "cliquenet": "CliqueNet",
    "resnext": "ResNeXt",
    "seresnet": "SENet",
}
_OTHERS = {"timm/vit_tiny_patch16_224": "ViT-Ti"}  # their numbers are no depth


def data_name(data: str) -> str:
    return DATA.get(data, data)


def model_name(model: str) -> str:
    """``timm/resnext50_32x4d`` as ResNeXt-50."""
    found = re.fullmatch(r"([a-z_]+?)(\d*)(?:_32x4d)?", model.rpartition("/")[2])
    if found is None or found[1] not in _FAMILIES:
        return _OTHERS.get(model, model)
    return _FAMILIES[found[1]] + (f"-{found[2]}" if found[2] else "")


def depth_of(model: str) -> int:
    """The number in a network's name, 0 where there is none."""
    found = re.search(r"\d+", model.rpartition("/")[2])
    return int(found[0]) if found else 0


def is_resnet(model: str) -> bool:
    """Whether it is a ResNet as the paper has them, with batch norm: no ResNeXt, SENet or network without norms."""
    return bool(re.fullmatch(r"[a-z]+/resnet\d+", model))


def is_papers(model: str) -> bool:
    """Whether the paper trains networks of this family."""
    return bool(re.fullmatch(r"[a-z]+/(resnet|resnext|seresnet|densenet|cliquenet)(\d.*)?", model))


def unknown_model(model: str) -> str:
    """What is wrong with the name of a network."""
    library, _, rest = model.partition("/")
    if library not in LIBRARIES or model_name(model) == model:
        return "write for example timm/resnet50 or cifar/resnet56"
    depth = re.fullmatch(r"(?:nf_)?resnet([0-9]{1,5})", rest)
    odd = depth is None or int(depth[1]) < 8 or int(depth[1]) % 6 != 2
    return "CIFAR ResNets have 6n+2 layers, such as 56" if library == "cifar" and "resnet" in rest and odd else ""
