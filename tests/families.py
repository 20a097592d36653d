"""One table of tiny cases: every family by its real implementation, reduced in depth or width."""

import timm
import torchvision

from timestepper.models import CifarResNet, CliqueNet, DenseNet

SMALL = {"layers": (2, 3, 1, 2), "channels": (16, 32, 32, 64), "num_classes": 5}

FAMILIES = {
    "timm resnet18": lambda: timm.create_model("resnet18", **SMALL),
    "timm resnet50": lambda: timm.create_model("resnet50", **SMALL),
    "timm resnext50": lambda: timm.create_model("resnext50_32x4d", **SMALL),
    "timm seresnet18": lambda: timm.create_model("seresnet18", **SMALL),
    "timm seresnet50": lambda: timm.create_model("seresnet50", **SMALL),
    "torchvision resnet18": lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 1, 1, 1], 5),
    "torchvision resnet50": lambda: torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1], 5),
    "cifar resnet20": lambda: CifarResNet(20, num_classes=5, width=8),
    "densenet": lambda: DenseNet(16, growth=8, num_classes=5),
    "cliquenet": lambda: CliqueNet(growth=8, layers=9, num_classes=5),
}
KINDS = ["lstm", "two_fc", "independent", "fixed(0.3)"]
