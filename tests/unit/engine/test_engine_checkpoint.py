import shutil
import zipfile

import pytest
import torch

from timestepper.engine import checkpoint
from timestepper.engine.checkpoint import Checkpoints, read
from timestepper.errors import CheckpointError, DivergedError

IDENTITY = {"model": "tiny", "classes": 10, "controller": "lstm"}


@pytest.fixture
def store(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints")
    made.create()
    return made


def state(value=1.0):
    return {
        "model": {"weight": torch.full((50, 7), value), "count": torch.tensor(3)},
        "best": {"error": 0.5},
        "note": None,
        **{"momentum": [], "epochs_done": 1, "interval": [], "epoch": [0.0, 0.0, 0.0], "world": 1},
        **{"recipe": "", "metrics_bytes": 0},
    }


def test_what_goes_in_comes_out(store):
    path = store.save(48, state(), IDENTITY)
    assert path.name == "step-00000048.pt"
    found, content = store.latest()
    assert found == path
    assert content["step"] == 48
    assert content["identity"] == IDENTITY
    assert content["best"] == {"error": 0.5}
    assert torch.equal(content["model"]["weight"], torch.full((50, 7), 1.0))
    checkpoint.check(path, content, IDENTITY)


def test_two_are_kept_and_leftovers_go(store):
    (store.folder / "step-00000009.pt.0123456789abcdef.tmp").write_bytes(b"half")
    for step in (1, 2, 3, 12):
        store.save(step, state(), IDENTITY)
    assert [path.name for path in store.paths()] == ["step-00000003.pt", "step-00000012.pt"]
    store.create()
    assert not list(store.folder.glob("*.tmp"))


def test_files_by_other_names_are_not_ours_and_steps_are_numbers(store):
    store.save(99_999_998, state(), IDENTITY)
    theirs = [f"step-{name}.pt" for name in ("best", "\N{DEVANAGARI DIGIT ONE}" * 8, "0000000001", "9" * 240)]
    for name in theirs:
        shutil.copy(store.folder / "step-99999998.pt", store.folder / name)
    (store.folder / "step-00000001.pt").mkdir()
    for step in (99_999_999, 100_000_000):
        store.save(step, state(), IDENTITY)
    assert [path.name for path in store.paths()] == ["step-99999999.pt", "step-100000000.pt"]
    assert all((store.folder / name).exists() for name in (*theirs, "step-00000001.pt"))
    assert store.latest()[1]["step"] == 100_000_000


def test_a_copy_under_the_name_of_a_later_step_is_named_and_not_taken(store):
    path = store.save(5, state(), IDENTITY)
    shutil.copy(path, store.folder / "step-00000900.pt")
    told = []
    assert store.latest(told.append)[0] == path
    assert told == [
        f"{store.folder}/step-00000900.pt is damaged or renamed (it is of step 5); going back to {path.name}"
    ]


def test_what_was_just_saved_stays_although_others_have_higher_numbers(store):
    for step in (10, 20, 5):
        store.save(step, state(), IDENTITY)
    assert [path.name for path in store.paths()] == ["step-00000005.pt", "step-00000010.pt", "step-00000020.pt"]


def test_a_view_is_saved_without_the_rest_of_its_memory(store):
    small = store.save(1, {"model": {"view": torch.zeros(1_000_000)[:10]}}, IDENTITY)
    assert small.stat().st_size < 20_000


def test_newest_sound_one_wins_and_the_damaged_one_is_named(store):
    for step in (1, 2):
        store.save(step, state(float(step)), IDENTITY)
    newest = store.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    told = []
    path, content = store.latest(told.append)
    assert path.name == "step-00000001.pt"
    assert content["step"] == 1
    assert len(told) == 1
    assert str(newest) in told[0]
    assert newest.exists()
    store.latest(told.append, set_aside=True)
    assert [p.name for p in sorted(store.folder.iterdir())] == ["step-00000001.pt", "step-00000002.pt.damaged"]


def test_none_at_all(store):
    assert store.latest() is None


def test_a_zip_that_is_no_checkpoint(store):
    path = store.folder / "step-00000001.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(CheckpointError, match=r"step-00000001\.pt"):
        read(path)
    torch.save({"weights": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of timestepper"):
        read(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "1"},
        {"format": 0},
        {"identity": []},
        {"step": -5},
        {"step": 1.0},
        {"step": True},
        {"model": [1]},
        {"model": {"weight": 1}},
        {"momentum": [None]},
        {"interval": [1.0]},
        {"epoch": ["a", "b", "c"]},
        {"world": 0},
        {"recipe": 3},
    ],
)
def test_a_sound_file_with_a_wrong_field_is_named(store, wrong):
    path = store.folder / "step-00000048.pt"
    torch.save({"format": 1, "identity": IDENTITY, "step": 48, **state(), **wrong}, path)
    with pytest.raises(CheckpointError, match=rf"step-00000048\.pt: {next(iter(wrong))}\S* (must|cannot|has) "):
        read(path)


@pytest.mark.parametrize("name", ["momentum", "epochs_done", "interval", "epoch", "best", "world", "recipe"])
def test_a_missing_field_is_named(store, name):
    path = store.save(48, {key: value for key, value in state().items() if key != name}, IDENTITY)
    with pytest.raises(CheckpointError, match=rf"step-00000048\.pt: {name} is missing"):
        read(path)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"weight": torch.zeros(2, 3)}, r"bias is missing in the checkpoint and \(2,\) in the network;"),
        ({"weight": torch.zeros(3, 2), "bias": torch.ones(2)}, r"weight is \(3, 2\) in the checkpoint and \(2, 3\)"),
        ({"weight": torch.zeros(2, 3), "bias": torch.ones(2), "more": torch.ones(1)}, "more is .*missing in the net"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors, told):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match=told):
        checkpoint.check_fit("x.pt", {"model": tensors}, model, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_never_saved(store, value):
    with pytest.raises(DivergedError, match=r"step 7: model\.weight"):
        store.save(7, state(value), IDENTITY)
    assert store.paths() == []


def test_objects_are_refused_by_name(store):
    with pytest.raises(TypeError, match=r"model\.thing is a set"):
        store.save(1, {"model": {"thing": {1}}}, IDENTITY)
