"""What the tests of other people's training loops share: pictures, and a task for Lightning."""

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from training import batch


class Pictures(Dataset):
    """Sixteen, with the column names that a Trainer hands to a forward."""

    images, labels = batch(size=16, pixels=8)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict:
        return {"pixel_values": self.images[index], "labels": self.labels[index], "file": index}


class Task(lightning.LightningModule):
    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def training_step(self, pictures, index):
        return F.cross_entropy(self.net(pictures["pixel_values"]), pictures["labels"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(task: Task, folder, steps: int, resume=None, **options) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    run = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        default_root_dir=folder,
        **quiet,
        **{"enable_checkpointing": False} | options,
    )
    run.fit(task, DataLoader(Pictures(), batch_size=4), ckpt_path=resume)
    return run
