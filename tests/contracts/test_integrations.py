"""Callbacks, groups of parameters, controllers for another depth: small things around a loop."""

import pytest
import pytorch_lightning
import torch
from for_images import Config, ForImages, trained_for_images
from loops import Pictures, Task, fit
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training import batch, bits, plain, same, train
from transformers import Trainer, TrainingArguments

import timestepper
from timestepper.errors import MismatchError, NotAttachedError, StepSizeError
from timestepper.integrations import lightning, transformers
from timestepper.models import CifarResNet


@pytest.fixture
def net():
    return trained_for_images()


# -- callbacks ---------------------------------------------------------------------------------------------------------


def test_the_callback_of_transformers_logs_and_folds(net, tmp_path):
    arguments = TrainingArguments(
        tmp_path / "run", per_device_train_batch_size=4, max_steps=2, logging_steps=1, report_to=[], use_cpu=True
    )
    trainer = Trainer(net, arguments, train_dataset=Pictures(), callbacks=[transformers.StepSizes(tmp_path / "folded")])
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 0 < logged["step_size/body.layer1"] < 1
    assert logged["evolution_time/body.layer3"] == pytest.approx(logged["step_size/body.layer3"])  # of one block
    folded = ForImages.from_pretrained(tmp_path / "folded").eval()
    images, _ = batch(pixels=8)
    assert torch.equal(folded(images)["logits"], net.eval()(images)["logits"])


def test_the_callback_of_transformers_folds_a_part(tmp_path):
    """As whatever is no network of transformers: weights that ``load_folded`` takes."""
    net = ForImages(Config())
    timestepper.attach(net.body)
    arguments = TrainingArguments(tmp_path / "run", max_steps=1, report_to=[], use_cpu=True)
    callbacks = [transformers.StepSizes(tmp_path / "folded")]
    Trainer(net, arguments, train_dataset=Pictures(), callbacks=callbacks).train()
    folded = timestepper.load_folded(plain(), tmp_path / "folded" / "body.safetensors").eval()
    images, _ = batch(pixels=8)
    assert torch.equal(folded(images), net.eval().body(images))


@pytest.mark.parametrize("later", [False, True], ids=["given to the trainer", "added later"])
def test_the_callback_of_transformers_reaches_tensorboard(net, tmp_path, monkeypatch, later):
    """Whose callback the trainer puts before its user's."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    arguments = TrainingArguments(
        tmp_path, max_steps=1, logging_steps=1, save_strategy="no", report_to=["tensorboard"], use_cpu=True
    )
    trainer = Trainer(net, arguments, train_dataset=Pictures(), callbacks=None if later else [transformers.StepSizes()])
    if later:
        trainer.add_callback(transformers.StepSizes())
    before = trainer.callback_handler.callback_list.split()
    trainer.train()
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    assert board.Scalars("train/step_size/body.layer1")[0].value == pytest.approx(
        trainer.state.log_history[0]["step_size/body.layer1"]
    )
    assert sorted(before) == sorted(trainer.callback_handler.callback_list.split())


def test_the_callback_of_lightning_logs_and_folds(tmp_path):
    module = Task(timestepper.attach(plain()))
    trainer = fit(module, tmp_path, 4, callbacks=[lightning.StepSizes(tmp_path)])
    assert 0 < trainer.logged_metrics["step_size/net.layer2"] < 1
    assert trainer.logged_metrics["evolution_time/net.layer1"] > 0
    folded = timestepper.load_folded(plain(), tmp_path / "net.safetensors").eval()
    images, _ = batch(pixels=8)
    assert torch.equal(folded(images), module.net.eval()(images))


@pytest.mark.parametrize("order", [1, -1])
def test_the_callback_of_lightning_folds_averaged_weights(tmp_path, order):
    """Which another callback puts in at the end of training."""
    module = Task(timestepper.attach(plain()))
    callbacks = [lightning.StepSizes(tmp_path), pytorch_lightning.callbacks.EMAWeightAveraging(decay=0.5)]
    fit(module, tmp_path, 4, callbacks=callbacks[::order])
    folded = timestepper.load_folded(plain(), tmp_path / "net.safetensors")
    assert same(bits(folded), bits(timestepper.fold(module.net)))


def test_a_callback_without_anything_to_watch_says_so_before_training(tmp_path):
    with pytest.raises(NotAttachedError, match=r"Task has no controllers to watch; call timestepper\.attach first"):
        fit(Task(plain()), tmp_path, 4, callbacks=[lightning.StepSizes(tmp_path)])
    assert not list(tmp_path.iterdir())


# -- groups of parameters ----------------------------------------------------------------------------------------------


def test_parameter_groups_train_network_and_controllers_apart():
    net = timestepper.attach(plain())
    groups = timestepper.parameter_groups(net, weight_decay=0.1, controller_weight_decay=0.0, controller_lr=0.01)
    optimiser = torch.optim.SGD(groups, lr=1.0)
    network, controllers = optimiser.param_groups
    assert (network["lr"], network["weight_decay"]) == (1.0, 0.1)
    assert (controllers["lr"], controllers["weight_decay"]) == (0.01, 0.0)
    assert (
        set(controllers["params"]) == set(timestepper.controller_parameters(net)) == set(net.controllers.parameters())
    )
    assert len(network["params"]) + len(controllers["params"]) == len(list(net.parameters()))
    assert "weight_decay" not in timestepper.parameter_groups(net)[0]
    for wrong in ({"controller_lr": "x"}, {"weight_decay": -1}, {"controller_weight_decay": float("nan")}):
        with pytest.raises(StepSizeError, match=f"^{next(iter(wrong))} must be a number of at least 0, not"):
            timestepper.parameter_groups(net, **wrong)


def test_only_the_step_sizes_of_a_frozen_base_are_trained():
    net = timestepper.freeze_base(timestepper.attach(plain(), "independent"))
    before = bits(net)
    train(net)
    moved = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert {key for key in moved if not key.endswith(statistics)} == {f"controllers.layer{n}.logit" for n in (1, 2, 3)}
    assert timestepper.parameter_groups(net)[0]["params"] == []


# -- another depth -----------------------------------------------------------------------------------------------------


def test_an_lstm_goes_to_another_depth(tmp_path):
    net = train(timestepper.attach(plain()))
    path = timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    deeper = plain(depth=20)
    with pytest.raises(MismatchError, match="made for CifarResNet whose stage layer1 is"):
        timestepper.load_controllers(deeper, path)
    assert not timestepper.is_attached(deeper)
    timestepper.load_controllers(deeper, path, strict_depth=False)
    assert same(bits(deeper.controllers), bits(net.controllers))
    assert timestepper.step_sizes(deeper)["layer1"].shape == (3, 8)
    with pytest.raises(MismatchError, match="whose stage layer1 is"):
        timestepper.load_controllers(CifarResNet(20, width=16), path, strict_depth=False)


def test_a_start_does_not_go_to_another_depth(tmp_path):
    path = timestepper.save_controllers(timestepper.attach(plain(), start="identity"), tmp_path / "steps.safetensors")
    deeper = plain(depth=20)
    with pytest.raises(MismatchError, match="start= counts from the first step sizes of each block"):
        timestepper.load_controllers(deeper, path, strict_depth=False)
    assert not timestepper.is_attached(deeper)


def test_one_parameter_per_block_does_not_go_to_another_depth(tmp_path):
    path = timestepper.save_controllers(timestepper.attach(plain(), "independent"), tmp_path / "steps.safetensors")
    with pytest.raises(MismatchError, match=r"layer1\.logit is \(1, 8\), not \(3, 8\)"):
        timestepper.load_controllers(plain(depth=20), path, strict_depth=False)
