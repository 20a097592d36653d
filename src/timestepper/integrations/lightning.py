"""A callback for Lightning: ``Trainer(callbacks=[StepSizes(fold_to="folder")])``."""

from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer

from timestepper.integrations.watching import look_ahead, scalars, write_folded


class StepSizes(Callback):
    """Logs mean step sizes and evolution time of every stage after every epoch; writes folded weights at the end.

    Args:
        fold_to: a folder for the folded weights; None writes none.
    """

    def __init__(self, fold_to: str | Path | None = None):
        self.fold_to = fold_to

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        look_ahead(pl_module, self.fold_to)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log_dict(scalars(pl_module))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not at the end of training, where others still put in their averaged weights.
        if self.fold_to is not None and trainer.is_global_zero:
            write_folded(pl_module, self.fold_to)
