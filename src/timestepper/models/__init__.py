"""Networks that no library has, as plain modules: there is no step size in them."""

from timestepper.models.cifar_resnet import CifarResNet
from timestepper.models.cliquenet import CliqueNet
from timestepper.models.densenet import DenseNet

__all__ = ["CifarResNet", "CliqueNet", "DenseNet"]
