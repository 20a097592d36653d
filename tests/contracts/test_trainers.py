"""Other people's training loops, on the attached network itself: HF Trainer, Accelerate, Lightning."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.state import AcceleratorState
from loops import Pictures, Task, fit
from pytorch_lightning.callbacks import ModelCheckpoint, WeightAveraging
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from training import batch, bits, fits_its_fold, plain, same, small
from transformers import Trainer, TrainingArguments

import timestepper
from timestepper.models import CifarResNet


class Classifier(CifarResNet):
    """A user's network for HF Trainer, which reads its signature."""

    def forward(self, pixel_values, labels=None):
        logits = super().forward(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if labels is not None else {"logits": logits}


def by_hand(net: nn.Module, steps: int) -> nn.Module:
    """Plain SGD over the pictures in order, in batches of four."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for number in range(steps):
        chosen = slice(4 * number % 16, 4 * number % 16 + 4)
        optimiser.zero_grad()
        logits = net(Pictures.images[chosen])
        logits = logits["logits"] if isinstance(logits, dict) else logits
        F.cross_entropy(logits, Pictures.labels[chosen]).backward()
        optimiser.step()
    return net


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def create_optimizer(self, *_):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


def trainer(net: nn.Module, folder, steps: int, **options) -> Trainer:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": steps,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    return InOrder(net, TrainingArguments(**settings | options), train_dataset=Pictures(), eval_dataset=Pictures())


class TestHuggingFace:
    def test_trains_evaluates_and_resumes(self, tmp_path):
        """To the last bit what a loop by hand does, also after a stop in the middle."""
        expected = by_hand(small(Classifier), 4)
        whole = small(Classifier)
        run = trainer(whole, tmp_path / "whole", 4)
        run.train()
        assert same(bits(whole), bits(expected))
        assert run.evaluate()["eval_loss"] > 0
        trainer(small(Classifier), tmp_path / "stopped", 2).train()
        resumed = small(Classifier)
        trainer(resumed, tmp_path / "stopped", 4).train(resume_from_checkpoint=str(tmp_path / "stopped/checkpoint-2"))
        assert same(bits(resumed), bits(whole))
        found = run.predict(Pictures()).predictions
        logits = timestepper.fold(whole.eval())(pixel_values=Pictures.images)["logits"]
        torch.testing.assert_close(torch.as_tensor(found), logits)

    def test_weight_decay_goes_by_the_groups_that_it_is_given(self, tmp_path):
        net = timestepper.attach(Classifier(8, num_classes=5, width=8), "gain")
        groups = timestepper.parameter_groups(net, weight_decay=0.1)
        arguments = TrainingArguments(tmp_path, max_steps=1, report_to=[], use_cpu=True, weight_decay=0.2)
        run = Trainer(net, arguments, optimizers=(torch.optim.AdamW(groups, lr=0.1), None), train_dataset=Pictures())
        run.train()
        assert [group["weight_decay"] for group in run.optimizer.param_groups] == [0.1, 0.0]

    def test_columns_of_the_batch_arrive(self, tmp_path):
        """It drops what the forward does not name, and says so by the signature."""
        run = trainer(small(Classifier), tmp_path, 1)
        run._set_signature_columns_if_needed()
        assert {"pixel_values", "labels"} <= set(run._signature_columns)
        (first, *_) = run.get_train_dataloader()
        assert set(first) == {"pixel_values", "labels"}

    def test_gradient_accumulation(self, tmp_path):
        net, twin = small(Classifier), small(Classifier)
        trainer(net, tmp_path, 1, gradient_accumulation_steps=2, per_device_train_batch_size=2).train()
        optimiser = torch.optim.SGD(twin.parameters(), lr=0.1)
        for half in (slice(0, 2), slice(2, 4)):
            (twin(Pictures.images[half], Pictures.labels[half])["loss"] / 2).backward()
        optimiser.step()
        assert same(bits(net), bits(twin))


@pytest.fixture
def _accelerate_afresh():
    """It keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("_accelerate_afresh")
def test_accelerate_trains_saves_and_loads(tmp_path):
    net, expected = small(), by_hand(small(), 4)
    accelerator = Accelerator(cpu=True)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(list(zip(Pictures.images, Pictures.labels, strict=True)), batch_size=4)
    net, optimiser, loader = accelerator.prepare(net, optimiser, loader)
    for images, labels in loader:
        accelerator.backward(F.cross_entropy(net(images), labels))
        optimiser.step()
        optimiser.zero_grad()
    assert same(bits(accelerator.unwrap_model(net)), bits(expected))
    accelerator.save_state(tmp_path)
    before = bits(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    accelerator.load_state(tmp_path)
    assert same(bits(net), before)
    assert fits_its_fold(accelerator.unwrap_model(net))


@pytest.mark.usefixtures("_accelerate_afresh")
def test_accelerate_in_mixed_precision_keeps_step_sizes_in_float32():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    net = accelerator.prepare(small().eval())
    logits = net(batch()[0])
    with torch.autocast("cpu", torch.bfloat16):
        expected = timestepper.fold(small().eval())(batch()[0])
    assert torch.equal(logits, expected.float())
    assert all(dt.dtype == torch.float32 for dt in timestepper.step_sizes(net).values())


@pytest.mark.usefixtures("_accelerate_afresh")
def test_what_accelerate_put_around_a_forward_does_no_harm_after_fold_and_detach():
    """For mixed precision it leaves a forward on the network, and its hooks leave one on every layer."""
    images = batch()[0]
    net = Accelerator(cpu=True, mixed_precision="bf16").prepare(small().eval())
    logits = net(images)
    assert torch.equal(timestepper.fold(net)(images), logits)
    with torch.autocast("cpu", torch.bfloat16):
        expected = timestepper.detach(small().eval())(images).float()
    assert torch.equal(timestepper.detach(net)(images), expected)
    hooked = small().eval()
    add_hook_to_module(hooked.layer1[0].bn2, ModelHook())
    assert torch.equal(timestepper.fold(hooked)(images), small().eval()(images))


class TestLightning:
    def test_trains_and_resumes(self, tmp_path):
        expected = by_hand(small(), 6)
        whole = Task(small())
        fit(whole, tmp_path, 6)
        assert same(bits(whole.net), bits(expected))
        saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
        fit(Task(small()), tmp_path, 4, callbacks=[saver], enable_checkpointing=True)
        resumed = Task(small())
        fit(resumed, tmp_path, 6, resume=tmp_path / "step=4.ckpt")
        assert same(bits(resumed.net), bits(whole.net))
        loaded = Task.load_from_checkpoint(
            tmp_path / "step=2.ckpt", net=timestepper.attach(plain()), weights_only=False
        )
        assert same(bits(loaded.net), bits(by_hand(small(), 2)))
        assert fits_its_fold(loaded.net)

    def test_moving_average(self, tmp_path):
        """Its callback averages the weights after every step, and puts the average in at the end."""
        average = WeightAveraging(use_buffers=False, avg_fn=lambda old, new, count: (old + new) / 2)
        task = Task(small())
        fit(task, tmp_path, 2, callbacks=[average])
        first, second = by_hand(small(), 1), by_hand(small(), 2)
        for (name, mean), one, two in zip(
            task.net.named_parameters(), first.parameters(), second.parameters(), strict=True
        ):
            torch.testing.assert_close(mean, (one + two) / 2, msg=name)
        assert fits_its_fold(task.net)


@pytest.fixture(autouse=True)
def _no_files_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
