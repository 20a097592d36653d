"""Networks that no library has, as plain modules: there is no step size in them."""

from timestepper.models.cifar_resnet import CifarResNet
from timestepper.models.cliquenet import CliqueNet
from timestepper.models.densenet import DenseNet
from timestepper.models.norm_free_resnet import NormFreeResNet

__all__ = ["CifarResNet", "CliqueNet", "DenseNet", "NormFreeResNet"]
