"""How a reader calls data sets, networks and what was put on them; and which such names there are."""

import re

from timestepper.names import NUMBER, pattern

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet", "digits": "digits"}
PAPER_DATA = ("cifar10", "cifar100", "imagenet")
# What groups.subject_of writes, options in its order; a plain network has none of a controller's.
SUBJECT = (
    r"(?!plain.*, (start|reduction|descriptor|weight))"
    rf"(plain|{pattern()})"
    rf"(, last norm starts at (?!1(,|$)){NUMBER})?"
    rf"(, start (identity|{NUMBER}))?"
    rf"(, reduction [1-9]\d*)?(, descriptor visible)?(, descriptor gradient false)?(, weight decay {NUMBER})?"
)
_FAMILIES = {
    "resnet": "ResNet",
    "densenet": "DenseNet",
    "cliquenet": "CliqueNet",
    "resnext": "ResNeXt",
    "seresnet": "SENet",
}


def data_name(data: str) -> str:
    return DATA.get(data, data)


def model_name(model: str) -> str:
    """``timm/resnext50_32x4d`` as ResNeXt-50."""
    found = re.fullmatch(r"([a-z]+?)(\d*)(?:_32x4d)?", model.rpartition("/")[2])
    if found is None or found[1] not in _FAMILIES:
        return model
    return _FAMILIES[found[1]] + (f"-{found[2]}" if found[2] else "")


def depth_of(model: str) -> int | None:
    """The number in a network's name."""
    found = re.search(r"\d+", model.rpartition("/")[2])
    return int(found[0]) if found else None


def spelled(subject: str) -> str:
    """A subject with its numbers as ``groups.subject_of`` writes them: ``fixed(0.01)``, never ``fixed(0.010)``."""
    start, decay, rest = subject.partition(", weight decay ")
    start = re.sub(rf"(?<=\(){NUMBER}|(?<= at ){NUMBER}", lambda found: f"{float(found[0]):g}", start)
    return start + decay + (str(float(rest)) if decay else "")


def subject_name(subject: str) -> str:
    """``two_fc`` and ``fixed(0.01)`` for people."""
    return re.sub(r"^(\w+)\((.*?)\)", r"\1 \2", subject).replace("two_fc", "two fc")
