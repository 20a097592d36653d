"""A plain and a stepped network that were really trained, in a few seconds, on digits."""

import pytest
import torch
from torch.nn import functional as F

import timestepper
from timestepper.data import open_dataset
from timestepper.models import CifarResNet
from timestepper.stability import Pixels


class Digits:
    def __init__(self):
        dataset = open_dataset("digits")
        self.scale = Pixels(dataset.mean, dataset.std)
        self.train = self._tensors(dataset.train)
        self.test = self._tensors(dataset.test)

    def _tensors(self, half):
        return self.scale.encode(half.images.permute(0, 3, 1, 2) / 255), half.labels

    def batches(self, size, count=None):
        """Test batches of one size; the last one is filled up with label -1."""
        images, labels = (tensor[:count] for tensor in self.test)
        for first in range(0, len(labels), size):
            part, part_labels = images[first : first + size], labels[first : first + size]
            empty = size - len(part_labels)
            yield F.pad(part, (0, 0) * 3 + (0, empty)), F.pad(part_labels, (0, empty), value=-1)


@pytest.fixture(scope="session")
def digits():
    return Digits()


def trained(net, digits, epochs=3):
    images, labels = digits.train
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    net.train()
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            optimiser.step()
    return net.eval()


def small_network():
    torch.manual_seed(0)
    return CifarResNet(14, in_chans=1, width=8)


@pytest.fixture(scope="session")
def plain(digits):
    return trained(small_network(), digits)


@pytest.fixture(scope="session")
def stepped(digits):
    return trained(timestepper.attach(small_network(), "lstm"), digits)


@pytest.fixture(scope="session")
def resnet8(digits):
    """One that the command line has a name for."""
    torch.manual_seed(0)
    return trained(CifarResNet(8, in_chans=1), digits)
