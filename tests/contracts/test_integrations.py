"""Callbacks, ``save_pretrained``, groups of parameters, controllers for another depth: small things around a loop."""

import logging
import subprocess
import sys

import pytest
import torch
from loops import Pictures, Task, fit
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F
from training import batch, bits, plain, same, train
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
)

import timestepper
from timestepper.errors import CheckpointError, MismatchError, NotAttachedError
from timestepper.integrations import lightning, transformers
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


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = timestepper.attach(ForImages(Config()))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    images, labels = batch(pixels=8)
    for _ in range(3):
        optimiser.zero_grad()
        net(images, labels)["loss"].backward()
        optimiser.step()
    return net.eval()


# -- save_pretrained ---------------------------------------------------------------------------------------------------


def test_what_is_saved_loads_as_the_plain_network_and_as_the_attached_one(net, tmp_path):
    images, _ = batch(pixels=8)
    net.save_pretrained(tmp_path)
    folded = ForImages.from_pretrained(tmp_path).eval()
    assert not timestepper.is_attached(folded)
    assert torch.equal(folded(images)["logits"], net(images)["logits"])
    again = timestepper.from_pretrained(ForImages, tmp_path).eval()
    assert same(bits(again), bits(net))
    assert torch.equal(again(images)["logits"], net(images)["logits"])


def test_checkpoints_of_a_trainer_stay_unfolded_and_go_on(net, tmp_path):
    arguments = TrainingArguments(
        tmp_path / "run", per_device_train_batch_size=4, max_steps=2, save_steps=1, report_to=[], use_cpu=True
    )
    Trainer(net, arguments, train_dataset=Pictures()).train()
    loaded = timestepper.from_pretrained(ForImages, tmp_path / "run" / "checkpoint-2")
    assert same(bits(loaded), bits(net))
    fresh = timestepper.attach(ForImages(Config()))
    Trainer(fresh, arguments, train_dataset=Pictures()).train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-1"))
    assert same(bits(fresh), bits(net))


def test_a_plain_load_of_unfolded_weights_is_told_of(net, tmp_path, caplog):
    net.save_pretrained(tmp_path, state_dict=net.state_dict())
    logger = logging.getLogger("transformers")
    logger.propagate = True
    ForImages.from_pretrained(tmp_path)
    assert "controllers" in caplog.text


def test_a_folder_without_controllers_is_named(tmp_path):
    ForImages(Config()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no timestepper\.safetensors; ForImages\.from_pretrained loads a"):
        timestepper.from_pretrained(ForImages, tmp_path)


def test_a_pickled_network_saves_itself_folded_in_a_process_that_imports_nothing_of_ours(tmp_path):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    net = timestepper.attach(ResNetForImageClassification(config)).eval()
    torch.save(net, tmp_path / "net.pt")
    program = "import sys, torch; torch.load(sys.argv[1], weights_only=False).save_pretrained(sys.argv[2])"
    subprocess.run([sys.executable, "-c", program, tmp_path / "net.pt", tmp_path / "saved"], check=True)
    images, _ = batch(pixels=8)
    for loaded in (
        ResNetForImageClassification.from_pretrained(tmp_path / "saved"),
        timestepper.from_pretrained(ResNetForImageClassification, tmp_path / "saved"),
    ):
        assert torch.equal(loaded.eval()(images).logits, net(images).logits)


def test_after_detach_saving_is_the_network_s_own(net, tmp_path):
    timestepper.detach(net).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("timestepper*"))


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
    folded = timestepper.load_folded(ForImages(Config()), tmp_path / "folded" / "folded.safetensors").eval()
    images, _ = batch(pixels=8)
    assert torch.equal(folded(images)["logits"], net.eval()(images)["logits"])


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


def test_one_parameter_per_block_does_not_go_to_another_depth(tmp_path):
    path = timestepper.save_controllers(timestepper.attach(plain(), "independent"), tmp_path / "steps.safetensors")
    with pytest.raises(MismatchError, match=r"layer1\.logit is \(1, 8\), not \(3, 8\)"):
        timestepper.load_controllers(plain(depth=20), path, strict_depth=False)
