"""``save_pretrained`` and ``from_pretrained`` of attached networks."""

import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from for_images import Config, ForImages, trained_for_images
from loops import Pictures
from torch import nn
from training import batch, bits, same
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import timestepper
from timestepper.errors import CheckpointError

OURS = ("timestepper.safetensors", "timestepper.trained.safetensors")


class Unknown(PreTrainedModel):
    """One whose input its configuration does not tell."""

    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.post_init()

    def forward(self, x):
        for block in self.blocks:
            x = x + block(torch.tanh(x))
        return x


@pytest.fixture
def net():
    return trained_for_images()


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


PATCHES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
RENAMED = {  # networks whose weights transformers saves under the names of its older versions
    "ViT": (ViTForImageClassification, ViTConfig(image_size=8, patch_size=4, num_labels=5, **PATCHES)),
    "DeiT": (DeiTForImageClassification, DeiTConfig(image_size=8, patch_size=4, num_labels=5, **PATCHES)),
    "Segformer": (
        SegformerForImageClassification,
        SegformerConfig(depths=[1] * 4, hidden_sizes=[8, 16, 24, 32], image_size=32, num_labels=5),
    ),
}


def renamed(name: str, seed: int):
    torch.manual_seed(seed)
    kind, config = RENAMED[name]
    return timestepper.attach(kind(config))


@pytest.mark.parametrize("name", RENAMED)
def test_checkpoints_of_a_trainer_go_on_where_transformers_renames_weights(name, tmp_path):
    """The patterns for its old names match in controllers.* too, and a trainer does not undo what they did."""
    arguments = TrainingArguments(
        tmp_path, per_device_train_batch_size=4, max_steps=2, save_steps=1, report_to=[], use_cpu=True
    )
    net, fresh = renamed(name, seed=0), renamed(name, seed=1)
    pictures = Larger() if name == "Segformer" else Pictures()
    Trainer(net, arguments, train_dataset=pictures).train()
    Trainer(fresh, arguments, train_dataset=pictures).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert same(bits(fresh), bits(net))
    assert same(bits(timestepper.from_pretrained(RENAMED[name][0], tmp_path / "checkpoint-2")), bits(net))


class Larger(Pictures):
    """In patches of four, in four stages that halve them."""

    images, labels = batch(size=16, pixels=32)


def test_controllers_of_another_name_or_kind_are_refused_also_by_a_load_that_is_not_strict(net):
    """As transformers renamed them in checkpoints of earlier versions; nor are those of another kind dropped."""
    renamed = {key.replace("controllers.body_", "controllers.body."): value for key, value in net.state_dict().items()}
    other = timestepper.attach(ForImages(Config()), "channel(0.1)").state_dict()
    for state in (renamed, other):
        with pytest.raises(RuntimeError, match=r"\tcontrollers\.body.* is no part of .*timestepper\.from_pretrained"):
            net.load_state_dict(state, strict=False)
    bare = {key.removeprefix("controllers."): value for key, value in other.items() if key.startswith("controllers.")}
    with pytest.raises(RuntimeError, match="is no part of this network's controllers"):
        net.controllers.load_state_dict(bare, strict=False)


def test_controllers_of_another_start_are_refused_also_by_a_load_that_is_not_strict(net):
    """Their step sizes would be divided by first ones that are not theirs."""
    counted = timestepper.attach(ForImages(Config()), start="identity")
    for one, other in ((net, counted), (counted, net)):
        with pytest.raises(RuntimeError, match=r"controllers\.dt0.* start or network is another; attach as it was"):
            one.load_state_dict(other.state_dict(), strict=False)
    counted.load_state_dict(ForImages(Config()).state_dict(), strict=False)
    for number in range(3):
        counted.load_state_dict(dict(list(counted.state_dict().items())[number::3]), strict=False)


@pytest.mark.parametrize("first", ["controllers", "net"])
def test_what_others_call_controllers_is_their_own(net, first):
    """Whichever of them a module has first; and a teacher that was attached may become a plain one."""

    def made(length, teacher):
        parts = {"controllers": nn.ModuleList(nn.Linear(2, 2) for _ in range(length)), "net": net, "teacher": teacher}
        return nn.ModuleDict(dict(sorted(parts.items(), key=lambda part: part[0] != first)))

    saved = made(2, timestepper.attach(ForImages(Config()))).state_dict()
    found = made(1, ForImages(Config())).load_state_dict(saved, strict=False)
    assert not found.missing_keys
    assert {key.split(".")[0] for key in found.unexpected_keys} == {"controllers", "teacher"}


def test_weights_in_shards_load_one_after_the_other(net):
    """Each has some of the controllers, which is no reason to refuse it."""
    fresh, state = timestepper.attach(ForImages(Config())), net.state_dict()
    for number in range(3):
        fresh.load_state_dict(dict(list(state.items())[number::3]), strict=False)
    assert same(bits(fresh), bits(net))


def test_a_part_that_was_attached_to_is_named(tmp_path):
    outer = ForImages(Config())
    timestepper.attach(outer.body)
    outer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no .*, but body\.controllers\..* attach to what you save"):
        timestepper.from_pretrained(ForImages, tmp_path)


def test_a_plain_load_of_unfolded_weights_is_told_of(net, tmp_path, caplog):
    net.save_pretrained(tmp_path, state_dict=net.state_dict())
    logger = logging.getLogger("transformers")
    logger.propagate = True
    ForImages.from_pretrained(tmp_path)
    assert "controllers" in caplog.text


def test_folded_weights_without_the_trained_ones_are_refused(net, tmp_path):
    """Step sizes would enter them twice."""
    net.save_pretrained(tmp_path)
    (tmp_path / "timestepper.trained.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"timestepper\.trained\.safetensors: is missing, and the weights"):
        timestepper.from_pretrained(ForImages, tmp_path)


@pytest.mark.parametrize("unfolded", [False, True], ids=["over folded weights", "over a trainer's"])
def test_a_plain_network_that_was_saved_over_an_attached_one_is_noticed(net, tmp_path, unfolded):
    net.save_pretrained(tmp_path, **({"state_dict": net.state_dict()} if unfolded else {}))
    ForImages(Config()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"/model\.safetensors: is missing or not what timestepper\.safe"):
        timestepper.from_pretrained(ForImages, tmp_path)
    net.save_pretrained(tmp_path)
    assert same(bits(timestepper.from_pretrained(ForImages, tmp_path)), bits(net))


def test_controllers_are_there_when_the_folder_is_uploaded(net, tmp_path, monkeypatch):
    uploads = []
    hub = transformers_hub_without_network(monkeypatch)
    monkeypatch.setattr(
        ForImages, "_upload_modified_files", lambda self, folder, repo, **_: uploads.append((repo, os.listdir(folder)))
    )
    net.save_pretrained(tmp_path / "mine", push_to_hub=True, private=True)
    net.save_pretrained(tmp_path / "mine", push_to_hub=True, repo_id="me/other")
    assert [repo for repo, _ in uploads] == ["mine", "me/other"]
    assert hub == [("mine", True), ("me/other", None)]
    for _, files in uploads:
        assert {"model.safetensors", "timestepper.json", *OURS} <= set(files)
    assert set(OURS) <= set(os.listdir(tmp_path / "mine"))
    with pytest.raises(CheckpointError, match="push_to_hub=True takes neither state_dict nor variant"):
        net.save_pretrained(tmp_path, push_to_hub=True, state_dict=net.state_dict())


def transformers_hub_without_network(monkeypatch) -> list:
    """The repositories that are made, each with whether it is private."""
    made = []

    class Api:
        def create_repo(self, repo_id, private=None, **_):
            made.append((repo_id, private))
            return SimpleNamespace(repo_id=repo_id)

    monkeypatch.setattr("transformers.utils.hub.hf_api", Api)
    card = SimpleNamespace(save=lambda path: None)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *_, **__: card)
    return made


@pytest.mark.parametrize("by_name", [True, False])
def test_a_process_that_is_not_the_main_one_writes_nothing(net, tmp_path, by_name):
    if by_name:
        net.save_pretrained(tmp_path, is_main_process=False)
    else:
        net.save_pretrained(tmp_path, False)
    assert not list(tmp_path.iterdir())


def test_a_network_that_needs_an_example_comes_back_with_one(tmp_path):
    example = torch.zeros(2, 6).normal_()
    net = timestepper.attach(Unknown(Config()), example=example)
    net.save_pretrained(tmp_path)
    again = timestepper.from_pretrained(Unknown, tmp_path, example=example)
    assert torch.equal(again(example), net(example))


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
