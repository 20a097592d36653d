"""A small network of transformers' kind, which the tests of saving and of callbacks share."""

import torch
from torch.nn import functional as F
from training import batch
from transformers import PretrainedConfig, PreTrainedModel

import timestepper
from timestepper.models import CifarResNet


class Config(PretrainedConfig):
    model_type = "small-images"


class ForImages(PreTrainedModel):
    """A network of transformers' kind around blocks that timestepper knows."""

    config_class = Config
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.body = CifarResNet(8, num_classes=5, width=8)
        self.post_init()

    def forward(self, pixel_values, labels=None):
        logits = self.body(pixel_values)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def trained_for_images() -> ForImages:
    """Attached, after three steps."""
    torch.manual_seed(0)
    net = timestepper.attach(ForImages(Config()))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    images, labels = batch(pixels=8)
    for _ in range(3):
        optimiser.zero_grad()
        net(images, labels)["loss"].backward()
        optimiser.step()
    return net.eval()
