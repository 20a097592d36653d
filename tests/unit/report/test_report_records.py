import json
import math
import shutil
from pathlib import Path

import pytest

from timestepper.files import digest, with_checksum
from timestepper.records import RECORD, load_records
from timestepper.records.curves import join, split, unpacked
from timestepper.records.files import WHOLE
from timestepper.report.page import write_page


@pytest.fixture
def folder(results, tmp_path):
    """Records as they are published."""
    return shutil.copytree(results, tmp_path / "results")


@pytest.fixture
def whole(results, tmp_path):
    """The same records, each one file, as the run directories hold them."""
    (tmp_path / "whole").mkdir()
    for run in sorted((results.parent / "runs").iterdir()):
        shutil.copy(run / RECORD, tmp_path / "whole" / f"{run.name}.json")
    return tmp_path / "whole"


def rewrite(path, change, seal=True):
    """Change a record's content; ``seal`` gives it a checksum that fits."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(with_checksum(content) if seal else content))


def test_records_of_the_real_writer_are_read(records):
    assert len(records) == 4
    assert {record.recipe["controller"]["kind"] for record in records} == {"none", "lstm"}
    assert sum(record.noise is not None for record in records) == 2
    assert {record.world for record in records} == {1}
    measured = next(record for record in records if record.stability)
    assert len(measured.stability.log_bound) == len(measured.stability.blocks) == 3


def test_processes_are_read_and_older_records_had_one(whole):
    one, other, *_ = sorted(whole.glob("*.json"))
    rewrite(one, lambda content: content.update(world=8))
    rewrite(other, lambda content: content.pop("world"))
    records, problems = load_records(whole)
    assert (sorted(record.world for record in records), problems) == ([1, 1, 1, 8], [])


CASES = {
    "edited": (lambda c: c["final"]["test"].update(error=0.0), False, "edited or damaged"),
    "another schema": (lambda c: c.update(schema=3), True, "schema version 3, this program reads 1 and 2"),
    "an older schema": (lambda c: c.update(schema=0), True, "schema version 0, this program reads 1 and 2"),
    "no checksum": (lambda c: c.pop("sha256"), False, "the checksum does not fit"),
    "unfinished": (lambda c: c["epochs"].pop(), True, "1 of 2 epochs"),
    "an epoch twice": (lambda c: c["epochs"][1].update(epoch=1), True, "2 of 2 epochs"),
    "nothing trained": (lambda c: c["recipe"]["run"].update(epochs=0), True, "recipe.run.epochs cannot be 0"),
    "no figures": (lambda c: c["final"].pop("test"), True, "final.test is missing"),
    "a missing part": (lambda c: c.pop("device"), True, "device is missing"),
    "a strange table": (lambda c: c.update(noise={"levels": [0]}), True, "noise.error is missing"),
    "no network": (lambda c: c["recipe"].pop("model"), True, "recipe.model.name must be text"),
    "no controller": (lambda c: c["recipe"]["controller"].update(kind=None), True, "recipe.controller.kind"),
    "not a number": (lambda c: c["final"]["test"].update(error=float("nan")), True, "final.test.error"),
    "folded, no difference": (lambda c: c["final"].pop("fold_difference"), True, "final.fold_difference"),
    "a controller's odd value": (lambda c: c["recipe"]["controller"].update(value="x"), True, "controller.value"),
    "no influence": (lambda c: c["final"].update(descriptor_influence=[1]), True, "final.descriptor_influence"),
    "a hole in a curve": (lambda c: c["epochs"][0].pop("train"), True, "epochs.train.loss"),
    "a block too few": (
        lambda c: c["epochs"][0]["profiles"]["step_sizes/layer1"].append(0.5),
        True,
        "epochs.profiles.step_sizes/layer1",
    ),
    "no table of profiles": (lambda c: c["epochs"][-1].update(profiles=None), True, "epochs.profiles.step_sizes/"),
    "a list of profiles": (lambda c: c["epochs"][0].update(profiles=[1]), True, "epochs.profiles.step_sizes/"),
    "a hole in a heat map": (lambda c: c["epochs"][0].pop("profiles"), True, "epochs.profiles.step_sizes/layer1"),
    "a stage without step sizes": (lambda c: c["step_sizes"].pop("layer1"), True, "step_sizes.layer1 is missing"),
    "a stage of nothing": (lambda c: c["step_sizes"].update(layer1=[]), True, "step_sizes.layer1 is missing"),
    "epochs of nothing": (lambda c: c.update(epochs=None), True, "epochs must be a list"),
    "an epoch that is no table": (lambda c: c["epochs"].append(3), True, "epochs[3] must be a table"),
    "step sizes of nothing": (lambda c: c.update(step_sizes=[1]), True, "step_sizes must be a table"),
    "a noise level too few": (lambda c: c["noise"]["levels"].pop(), True, "noise has lists"),
    "a noise level without draws": (lambda c: c["noise"]["error"].__setitem__(0, []), True, "noise has lists"),
    "a block without growth": (lambda c: c["stability"]["log_growth"]["power"].pop(), True, "stability has lists"),
    "no bound": (lambda c: c["stability"].update(log_bound=[]), True, "stability has lists"),
    "nobody trained it": (lambda c: c.update(world=0), True, "world cannot be 0"),
    "no search": (lambda c: c["stability"]["log_end_to_end"].pop("random"), True, "stability has lists"),
    "a loss without end": (lambda c: c["noise"]["loss"][0].__setitem__(0, math.inf), True, "noise.loss"),
    "no noise error": (lambda c: c["noise"]["error"][0].__setitem__(0, math.nan), True, "noise.error"),
    "a noise error above 1": (lambda c: c["noise"]["error"][0].__setitem__(0, 1.5), True, "noise.error"),
    "an odd noise level": (lambda c: c["noise"]["levels"].__setitem__(0, math.nan), True, "noise.levels"),
    "a bound without end": (lambda c: c["stability"]["log_bound"].__setitem__(0, math.inf), True, "log_bound"),
    "no growth": (lambda c: c["stability"]["log_growth"]["power"].__setitem__(0, math.nan), True, "log_growth"),
    "no end": (lambda c: c["stability"]["log_end_to_end"].update(random=math.nan), True, "log_end_to_end"),
    "no step in stability": (lambda c: c["stability"].update(step_sizes=[math.nan]), True, "stability.step_sizes"),
    "no step size": (lambda c: c["step_sizes"]["layer1"][0].__setitem__(0, math.nan), True, "step_sizes.layer1 has"),
    "no time": (lambda c: c.update(wall_seconds=math.nan), True, "wall_seconds"),
    "a time before the start": (lambda c: c.update(wall_seconds=-1.0), True, "wall_seconds"),
    "a time beyond floats": (lambda c: c.update(wall_seconds=10**400), True, "wall_seconds must be"),
    "influence of nothing": (
        lambda c: c["final"].update(descriptor_influence=None),
        True,
        "final.descriptor_influence",
    ),
    "an error above 1": (lambda c: c["final"]["test"].update(error=1.5), True, "final.test.error"),
    "an error below 0": (lambda c: c["final"]["test"].update(error=-1), True, "final.test.error"),
    "an error beyond floats": (lambda c: c["final"]["test"].update(error=10**400), True, "final.test.error"),
    "an epoch's error above 1": (lambda c: c["epochs"][0]["test"].update(error=1.5), True, "epochs.test.error"),
    "a loss beyond float32": (lambda c: c["epochs"][0]["train"].update(loss=1e300), True, "epochs.train.loss"),
    "epochs beyond floats": (lambda c: c["recipe"]["run"].update(epochs=10**400), True, "recipe.run.epochs"),
    "another seed": (lambda c: c["recipe"]["run"].update(seed=7), True, "seed is 0, and recipe.run.seed 7"),
    "another kind": (lambda c: c.update(kind="benchmark"), True, "kind cannot be 'benchmark'"),
    "a setting of settings": (lambda c: c["recipe"]["data"].update(size={"a": 1}), True, "recipe.data.size"),
    "a wrong type": (lambda c: c.update(seed="0"), True, "seed must be a whole number"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_record_is_named_and_the_others_still_count(whole, case):
    change, seal, complaint = CASES[case]
    bad = whole / "lstm0.json"
    rewrite(bad, change, seal)
    records, problems = load_records(whole)
    assert len(records) == 3
    assert len(problems) == 1
    assert str(bad) in problems[0]
    assert complaint in problems[0]


DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"a": 1}', DEEP])
def test_a_file_that_is_no_record_is_named(folder, content):
    (folder / "stray.json").write_bytes(content)
    records, problems = load_records(folder)
    assert len(records) == 4
    assert [str(folder / "stray.json") in problem for problem in problems] == [True]


def test_records_that_were_put_aside_in_a_folder_below_do_not_count(folder):
    (folder / "old").mkdir()
    first = sorted(folder.glob("*.json"))[0]
    for path in (first, first.with_suffix(".npz")):
        path.rename(folder / "old" / path.name)
    records, problems = load_records(folder)
    assert (len(records), problems) == (3, [])


def test_more_than_is_needed_does_no_harm(folder):
    rewrite(sorted(folder.glob("*.json"))[0], lambda content: content.update(further={"a": 1}))
    records, problems = load_records(folder)
    assert (len(records), problems) == (4, [])


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_every_truncation_is_noticed(folder, suffix):
    path = sorted(folder.glob("*.json"))[0].with_suffix(suffix)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, len(whole) // 25):
        path.write_bytes(whole[:length])
        _, problems = load_records(folder)
        assert len(problems) == 1, length
        assert str(path) in problems[0]


def test_the_same_run_twice_counts_once(folder, tmp_path):
    first = sorted(folder.glob("*.json"))[0]
    for suffix in (".json", ".npz"):
        shutil.copy(first.with_suffix(suffix), folder / f"copy{suffix}")
    records, _ = load_records(folder)
    write_page(records, {}, tmp_path / "page.html", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert f"{first}: the same run as {folder / 'copy.json'}" in text
    assert text.count(first.name) == 1  # not among the records behind the page


# -- a summary and its curves ------------------------------------------------------------------------------------------

EPOCHS = [
    {"epoch": 1, "train": {"loss": 0.1, "error": 1}, "test": {"error": 0.5}, "scalars": {}, "what": "x"},
    {"epoch": 2, "train": {"loss": 1e-300, "error": 0.5}, "profiles": {"a.b/c": [0.5, 0.25]}, "what": None},
    {"epoch": 3, "train": {"loss": 3, "error": -0.0}, "test": {"error": 0.1}, "profiles": {"a.b/c": [0.5]}, "ok": True},
]


def test_every_value_comes_back_from_the_curves_as_it_was():
    """Also what some epochs lack, numbers that a float32 cannot hold, and lists of different lengths."""
    content = {"epochs": EPOCHS, "step_sizes": {"layer1": [[0.27449, 0.1], [0.5, 1.0]], "odd": [[1.0], [2.0, 3]]}}
    found = join(split(content))
    assert json.dumps(found["epochs"], sort_keys=True) == json.dumps(EPOCHS, sort_keys=True)
    assert json.dumps(found["step_sizes"]) == json.dumps(content["step_sizes"])


def test_what_a_record_says_does_not_depend_on_its_form(folder, whole):
    one, other = (load_records(each)[0] for each in (folder, whole))

    def told(records):
        return sorted(({**vars(record), "path": ""} for record in records), key=lambda r: (str(r["recipe"]), r["seed"]))

    assert told(one) == told(other)
    assert len(one) == 4


@pytest.mark.parametrize("damage", ["missing", "of another record", "damaged"])
def test_curves_that_are_not_the_record_s_are_named(folder, damage):
    one, other = sorted(folder.glob("*.npz"))[:2]
    if damage == "missing":
        one.unlink()
    else:
        one.write_bytes(other.read_bytes() if damage == "of another record" else one.read_bytes()[:-1] + b"x")
    records, problems = load_records(folder)
    assert len(records) == 3
    assert problems[0].startswith(f"{one}: the curves of {one.stem}.json")


def test_the_records_of_the_project_are_small_and_readable():
    folder = Path(__file__).parents[3] / "results"
    found = sorted([*folder.glob("*.json"), *folder.glob("repeated/*.json")])
    assert found
    for path in found:
        summary, curves = path.stat().st_size, path.with_suffix(".npz").stat().st_size
        assert summary < 12_000, path
        assert summary + curves < 50_000, path
        assert max(map(len, path.read_text().splitlines())) < 140, path


def test_the_records_of_the_project_have_every_number_of_the_files_that_they_were():
    folder = Path(__file__).parents[3] / "results"
    for path in sorted([*folder.glob("*.json"), *folder.glob("repeated/*.json")]):
        summary = json.loads(path.read_text())
        was, _, _ = (summary.pop(key) for key in ("converted_from", "curves", "sha256"))
        curves = join(unpacked(path.with_suffix(".npz").read_bytes()))
        assert digest({**summary, **curves, "schema": WHOLE}) == was, path
