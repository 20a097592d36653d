"""A callback for transformers: ``Trainer(model, args, callbacks=[StepSizes(fold_to="folder")])``."""

import sys
import traceback
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_callback import CallbackHandler

from timestepper.api import fold
from timestepper.integrations.pretrained import saves_adapters_alone
from timestepper.integrations.watching import look_ahead, scalars, write_folded
from timestepper.steps import find


class StepSizes(TrainerCallback):
    """Puts mean step sizes and evolution time of every stage into every log; writes folded weights at the end.

    The logs go to TensorBoard, W&B and whatever else the trainer reports to.

    Args:
        fold_to: a folder for the folded weights; None writes none. A network of transformers is written as the plain
            one, for its ``from_pretrained``. Of others, of parts, and of those with adapters of PEFT, the weights are
            written as ``folded.safetensors`` or ``PART.safetensors``, for ``timestepper.load_folded``.
    """

    def __init__(self, fold_to: str | Path | None = None):
        self.fold_to = fold_to

    def on_init_end(self, args, state, control, **kwargs) -> None:
        self._go_first()

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        look_ahead(model, self.fold_to)
        self._go_first()  # who was added after the trainer was made has seen no on_init_end

    def on_log(self, args, state, control, model=None, logs=None, **kwargs) -> None:
        found = scalars(model)
        state.log_history[-1].update(found)
        if logs is not None:
            logs.update(found)  # for the callbacks behind this one, which are all others

    def on_train_end(self, args, state, control, model=None, **kwargs) -> None:
        if self.fold_to is None or not state.is_world_process_zero:
            return
        if isinstance(model, PreTrainedModel) and find(model) is not None and not saves_adapters_alone(model):
            plain: Any = fold(model)
            plain.save_pretrained(self.fold_to)
        else:
            write_folded(model, self.fold_to)

    def _go_first(self) -> None:
        """Before the callbacks that report, behind which a trainer puts those of its user.

        The list of all is with the handler that calls this one. No event is given it, so it is looked for there.
        """
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
        handlers = (frame.f_locals.get("self") for frame in frames)
        handler = next((each for each in handlers if isinstance(each, CallbackHandler)), None)
        if handler is not None:
            handler.callbacks.remove(self)
            handler.callbacks.insert(0, self)  # those behind stay in their places: the handler's loop goes on
