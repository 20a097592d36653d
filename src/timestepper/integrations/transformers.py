"""A callback for transformers: ``Trainer(model, args, callbacks=[StepSizes(fold_to="folder")])``."""

from pathlib import Path

from transformers import TrainerCallback

from timestepper.integrations.watching import attached_parts, scalars, write_folded


class StepSizes(TrainerCallback):
    """Puts mean step sizes and evolution time of every stage into every log; writes folded weights at the end.

    Args:
        fold_to: a folder for the folded weights; None writes none.
    """

    def __init__(self, fold_to: str | Path | None = None):
        self.fold_to = fold_to

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        attached_parts(model)  # which says what is missing before anything is trained

    def on_log(self, args, state, control, model=None, logs=None, **kwargs) -> None:
        found = scalars(model)
        state.log_history[-1].update(found)
        if logs is not None:
            logs.update(found)  # for the callbacks behind this one

    def on_train_end(self, args, state, control, model=None, **kwargs) -> None:
        if self.fold_to is not None and state.is_world_process_zero:
            write_folded(model, self.fold_to)
