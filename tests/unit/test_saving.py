"""Controllers and folded weights on disk, and what is said when they do not fit."""

import copy
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import timestepper
from timestepper.api import find_steps
from timestepper.errors import CheckpointError, DiskFullError, MismatchError, RunDirectoryError
from timestepper.models import CifarResNet
from timestepper.tensors import read_tensors, write_tensors


def trained(kind="lstm", **options):
    torch.manual_seed(1)
    net = timestepper.attach(CifarResNet(14, num_classes=5, width=8), kind, **options)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net.eval()


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lstm", {}),
        ("lstm", {"reduction": 2}),
        ("lstm", {"descriptor": "visible"}),
        ("lstm", {"descriptor_gradient": False}),
        ("two_fc", {}),
        ("independent", {}),
        ("fixed(0.1)", {}),
        ("fixed(0.123456789)", {}),
    ],
)
def test_controllers_come_back(tmp_path, kind, options):
    net = trained(kind, **options)
    timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    base = timestepper.detach(copy.deepcopy(net))
    back = timestepper.load_controllers(base, tmp_path / "steps.safetensors")
    assert torch.equal(back(IMAGES), net(IMAGES))
    assert find_steps(back).stepping == find_steps(net).stepping
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "steps.json",
        "steps.safetensors",
        "steps.safetensors.sha256",
    ]
    assert json.loads((tmp_path / "steps.json").read_text())["controller"] == kind


def test_folded_weights_have_the_base_keys(tmp_path):
    net = trained()
    path = timestepper.save_folded(net, tmp_path / "plain.safetensors")
    plain = CifarResNet(14, num_classes=5, width=8)
    plain.load_state_dict(load_file(path), strict=True)
    assert torch.equal(plain.eval()(IMAGES), net(IMAGES))
    assert torch.equal(timestepper.load_folded(CifarResNet(14, 5, width=8), path).eval()(IMAGES), net(IMAGES))


def test_a_block_in_two_places_is_saved_under_both_names(tmp_path):
    def tied():
        model = CifarResNet(14, num_classes=5, width=8)
        model.layer1[1] = model.layer1[0]
        model.head = model.linear
        return model

    torch.manual_seed(1)
    net = timestepper.attach(tied()).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    path = timestepper.save_folded(net, tmp_path / "plain.safetensors")
    assert set(load_file(path)) == set(timestepper.fold(net).state_dict())
    assert torch.equal(timestepper.load_folded(tied(), path).eval()(IMAGES), net(IMAGES))


def test_views_of_one_memory_are_saved_each_with_its_own_values(tmp_path):
    whole = torch.arange(10.0)
    views = {"whole": whole, "start": whole[:6], "end": whole[4:], "every_other": whole[::2], "none": whole[:0]}
    back = read_tensors(write_tensors(views, tmp_path / "views.safetensors"))
    assert set(back) == set(views)
    assert all(torch.equal(back[name], view) for name, view in views.items())


def test_channels_last_is_a_matter_of_memory_and_not_of_files(tmp_path):
    net = trained("independent")  # which reads no weights: how they lie decides the last bit of their mean
    path = timestepper.save_folded(net.to(memory_format=torch.channels_last), tmp_path / "plain.safetensors")
    assert (
        path.read_bytes()
        == timestepper.save_folded(trained("independent"), tmp_path / "other.safetensors").read_bytes()
    )


def test_the_wrong_network_is_told_which_tensors_do_not_fit(tmp_path):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    other = CifarResNet(14, num_classes=7, width=8)
    before = other.linear.weight.clone()
    with pytest.raises(
        MismatchError, match=r"plain.safetensors does not fit CifarResNet: .*linear.bias is \(5,\), not \(7,\)"
    ):
        timestepper.load_folded(other, path)
    assert torch.equal(other.linear.weight, before)
    # Three blocks are missing, each of two convolutions and two norms of five tensors; eight of them are named.
    with pytest.raises(MismatchError, match=r"layer1.2.conv1.weight is missing.* and 28 more"):
        timestepper.load_folded(CifarResNet(20, num_classes=5, width=8), path)
    with pytest.raises(MismatchError, match=r"layer1.1.\S+ is not part of it"):
        timestepper.load_folded(CifarResNet(8, num_classes=5, width=8), path)


def test_controllers_of_another_network_are_refused(tmp_path):
    timestepper.save_controllers(trained(), tmp_path / "steps.safetensors")
    with pytest.raises(
        MismatchError, match=r"made for CifarResNet whose stage layer1 is .*'channels': 8.*has .*'channels': 4"
    ):
        timestepper.load_controllers(CifarResNet(14, width=4), tmp_path / "steps.safetensors")


def test_controllers_of_blocks_in_other_places_are_refused(tmp_path):
    net = trained()
    timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    model = CifarResNet(14, num_classes=5, width=8)
    model.layer2.insert(1, torch.nn.Identity())
    with pytest.raises(MismatchError, match=r"stage layer2 is .*'layer2.1'.*has .*'layer2.2'"):
        timestepper.load_controllers(model, tmp_path / "steps.safetensors")


def test_what_is_missing_is_named(tmp_path):
    model = CifarResNet(14, num_classes=5, width=8)
    with pytest.raises(CheckpointError, match=r"typo\.safetensors: no such file$"):
        timestepper.load_controllers(model, tmp_path / "typo.safetensors")
    for name in ("typo" * 99, "no\0name"):
        with pytest.raises(CheckpointError):
            timestepper.load_controllers(model, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"is a folder; name the \.safetensors file, or .*from_pretrained"):
        timestepper.load_controllers(model, tmp_path)
    folded = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    with pytest.raises(CheckpointError, match=r"plain\.safetensors: plain\.json.* is not beside it; .*load_folded"):
        timestepper.load_controllers(model, folded)


def test_damage_is_noticed(tmp_path):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; the file is damaged"):
        timestepper.load_folded(CifarResNet(14, 5, width=8), path)
    with pytest.raises(CheckpointError, match=r"nothing.safetensors: cannot be read: No such file .*; check its name"):
        timestepper.load_folded(CifarResNet(14, 5, width=8), tmp_path / "nothing.safetensors")


def test_a_description_of_another_format_is_refused(tmp_path):
    timestepper.save_controllers(trained(), tmp_path / "steps.safetensors")
    (tmp_path / "steps.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match=r"steps.json: format 99 is not 1; update timestepper"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), tmp_path / "steps.safetensors")
    (tmp_path / "steps.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"steps.json: not valid JSON: .*; save the controllers again"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), tmp_path / "steps.safetensors")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", r"must be a table, not \[\]"),
        ("null", "must be a table, not None"),
        ("{}", "format is missing"),
        ('{"format": 1}', "model is missing"),
        ({"controller": None}, "controller must be text, not None"),
        ({"reduction": "four"}, "reduction must be a whole number, not 'four'"),
        ({"stages": None}, "stages must be a list, not None"),
        ({"stages": [{}]}, r"stages\[1\].name is missing"),
        ({"stages": ["layer1"]}, r"stages\[1\] must be a table, not 'layer1'"),
    ],
)
def test_a_damaged_description_is_named(tmp_path, text, fault):
    path = timestepper.save_controllers(trained(), tmp_path / "steps.safetensors")
    beside = tmp_path / "steps.json"
    beside.write_text(text if isinstance(text, str) else json.dumps(json.loads(beside.read_text()) | text))
    with pytest.raises(CheckpointError, match=rf"steps.json: {fault}; save the controllers again"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), path)


@pytest.mark.parametrize("name", ["steps.json", ""])
def test_controllers_do_not_overwrite_their_own_description(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"name the file .safetensors; .* goes beside it as .json"):
        timestepper.save_controllers(trained(), name)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match=r"name the file .safetensors"):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), name)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_a_checksum_that_cannot_be_read_is_no_checksum(tmp_path, content):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    (tmp_path / "plain.safetensors.sha256").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"cannot be verified: .*plain.safetensors.sha256 holds no sha256; export"
    ):
        timestepper.load_folded(CifarResNet(14, 5, width=8), path)


def test_weights_from_elsewhere_are_loaded_once_somebody_vouches_for_them(tmp_path):
    """The message says how, and does not take a file that nobody vouched for."""
    plain, path = CifarResNet(14, 5, width=8), tmp_path / "their weights.safetensors"
    save_file(plain.state_dict(), path)
    with pytest.raises(CheckpointError) as caught:
        timestepper.load_folded(CifarResNet(14, 5, width=8), path)
    said, _, command = str(caught.value).partition(" make the sum yourself: ")
    assert said == (
        f"{path}: cannot be verified: {path}.sha256 cannot be read (No such file or directory); export it again, "
        "or, if you trust the file as it is,"
    )
    subprocess.run(command, shell=True, check=True)
    loaded = timestepper.load_folded(CifarResNet(14, 5, width=8), path)
    assert torch.equal(loaded.eval()(IMAGES), plain.eval()(IMAGES))


@pytest.mark.parametrize("save", [timestepper.save_folded, timestepper.save_controllers])
def test_missing_folders_are_made(save, tmp_path):
    path = tmp_path / "a" / "b" / "x.safetensors"
    assert save(trained(), path) == path
    assert path.exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="a file is in the way"):
        save(trained(), tmp_path / "file" / "x.safetensors")


def test_a_file_of_another_kind_is_refused_though_its_sum_is_right(tmp_path):
    path = tmp_path / "plain.safetensors"
    path.write_bytes(b"not tensors")
    path.with_name("plain.safetensors.sha256").write_text(hashlib.sha256(b"not tensors").hexdigest())
    with pytest.raises(CheckpointError, match=r"plain.safetensors: is no safetensors file: "):
        timestepper.load_folded(CifarResNet(14, 5, width=8), path)


def test_an_export_that_finds_no_space_leaves_the_one_before_whole(tmp_path, monkeypatch):
    path = timestepper.save_folded(trained(), tmp_path / "plain.safetensors")
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(1000, 1000, 0))
        with pytest.raises(DiskFullError, match=r"No space left for .*plain.safetensors: need"):
            timestepper.save_folded(trained("two_fc"), path)
    assert path.read_bytes() == before
    timestepper.load_folded(CifarResNet(14, 5, width=8), path)


def test_what_is_loaded_is_what_was_verified(tmp_path, monkeypatch):
    """Between two readings the file could be replaced."""
    net = trained()
    path = timestepper.save_folded(net, tmp_path / "x.safetensors")
    read, readings = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda self: readings.append(self) or read(self))
    timestepper.load_folded(timestepper.detach(net), path)
    assert readings.count(path) == 1


@pytest.mark.parametrize(
    ("spoil", "kind"), [(lambda tensor: tensor * torch.nan, "float32"), (lambda tensor: tensor.to(torch.int8), "int8")]
)
def test_controllers_that_are_no_numbers_are_refused_and_nothing_is_left(tmp_path, spoil, kind):
    path = timestepper.save_controllers(trained("lstm"), tmp_path / "steps.safetensors")
    write_tensors({name: spoil(tensor) for name, tensor in read_tensors(path).items()}, path)
    model = CifarResNet(14, num_classes=5, width=8)
    with pytest.raises(MismatchError, match=rf"layer\d\.\w+ \(torch\.{kind}\) holds other than finite floats"):
        timestepper.load_controllers(model, path)
    assert not timestepper.is_attached(model)


def test_descriptions_with_doubled_stages_or_endless_brackets_are_refused(tmp_path):
    path = timestepper.save_controllers(trained("lstm"), tmp_path / "steps.safetensors")
    beside = path.with_suffix(".json")
    description = json.loads(beside.read_text())
    beside.write_text(json.dumps(description | {"stages": description["stages"] * 2}))
    with pytest.raises(CheckpointError, match="stages has layer1 twice; save the controllers again"):
        timestepper.load_controllers(CifarResNet(14, num_classes=5, width=8), path)
    beside.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"not valid JSON: .*; save the controllers again"):
        timestepper.load_controllers(CifarResNet(14, num_classes=5, width=8), path)


@pytest.mark.parametrize("choice", [{"exclude": "layer1.*"}, {"sites": ["layer2.*", "layer3.0"]}])
def test_controllers_of_chosen_sites_come_back_without_saying_which(choice, tmp_path):
    net = trained(**choice).eval()
    path = timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    plain = timestepper.detach(copy.deepcopy(net))
    assert torch.equal(timestepper.load_controllers(plain, path)(IMAGES), net(IMAGES))
    with pytest.raises(MismatchError):
        timestepper.load_controllers(CifarResNet(14, 5, width=8), path, exclude="layer3.*")


def test_no_path_is_refused_by_name():
    net, plain = trained(), CifarResNet(14, num_classes=5, width=8)
    for act, given in (
        (timestepper.save_controllers, net),
        (timestepper.load_controllers, plain),
        (timestepper.save_folded, net),
        (timestepper.load_folded, plain),
    ):
        with pytest.raises(CheckpointError, match=r"the path of a \.safetensors file is needed, not None"):
            act(given, None)
    assert not timestepper.is_attached(plain)
