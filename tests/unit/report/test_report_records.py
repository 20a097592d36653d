import json
import math

import pytest

from timestepper import report
from timestepper.files import digest


@pytest.fixture
def folder(results, tmp_path):
    for path in results.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def rewrite(path, change, seal):
    """Change a record's content; ``seal`` gives it a checksum that fits."""
    content = json.loads(path.read_text())
    change(content)
    if seal:
        content.pop("sha256")
        content["sha256"] = digest(content)
    path.write_text(json.dumps(content))


def test_records_of_the_real_writer_are_read(records):
    assert len(records) == 4
    assert {record.recipe["controller"]["kind"] for record in records} == {"none", "lstm"}
    assert sum(record.noise is not None for record in records) == 2
    measured = next(record for record in records if record.stability)
    assert len(measured.stability.log_bound) == len(measured.stability.blocks) == 3


CASES = {
    "edited": (lambda c: c["final"]["test"].update(error=0.0), False, "edited or damaged"),
    "another schema": (lambda c: c.update(schema=2), True, "schema version 2, this program reads 1"),
    "an older schema": (lambda c: c.update(schema=0), True, "schema version 0, this program reads 1"),
    "no checksum": (lambda c: c.pop("sha256"), False, "the checksum does not fit"),
    "unfinished": (lambda c: c["epochs"].pop(), True, "1 of 2 epochs"),
    "an epoch twice": (lambda c: c["epochs"][1].update(epoch=1), True, "2 of 2 epochs"),
    "nothing trained": (lambda c: c["recipe"]["run"].update(epochs=0) or c.update(epochs=[]), True, "0 of 0 epochs"),
    "no figures": (lambda c: c["final"].pop("test"), True, "final.test.error"),
    "a missing part": (lambda c: c.pop("device"), True, "key device is missing"),
    "a strange table": (lambda c: c.update(noise={"levels": [0]}), True, "noise: key error is missing"),
    "no network": (lambda c: c["recipe"].pop("model"), True, "recipe.model.name is missing"),
    "no controller": (lambda c: c["recipe"]["controller"].update(kind=None), True, "recipe.controller.kind"),
    "not a number": (lambda c: c["final"]["test"].update(error=float("nan")), True, "final.test.error"),
    "folded to nothing": (lambda c: c["final"].update(folded=None), True, "final.folded.error"),
    "folded, no difference": (lambda c: c["final"].pop("fold_difference"), True, "final.fold_difference"),
    "a controller's odd value": (lambda c: c["recipe"]["controller"].update(value="x"), True, "controller.value"),
    "no influence": (lambda c: c["final"].update(descriptor_influence=[1]), True, "final.descriptor_influence"),
    "a hole in a curve": (lambda c: c["epochs"][0].pop("train"), True, "epoch 1: train.loss"),
    "a test without an error": (lambda c: c["epochs"][0]["test"].pop("error"), True, "epoch 1: test.error"),
    "a block too few": (
        lambda c: c["epochs"][0]["profiles"]["step_sizes/layer1"].append(0.5),
        True,
        "epoch 1: profiles.step_sizes/layer1",
    ),
    "no table of profiles": (lambda c: c["epochs"][-1].update(profiles=None), True, "epoch 2: profiles"),
    "a list of profiles": (lambda c: c["epochs"][0].update(profiles=[1]), True, "epoch 1: profiles"),
    "a hole in a heat map": (lambda c: c["epochs"][0].pop("profiles"), True, "epoch 1: profiles.step_sizes/layer1"),
    "a stage without step sizes": (lambda c: c["step_sizes"].pop("layer1"), True, "step_sizes is missing"),
    "a noise level too few": (lambda c: c["noise"]["levels"].pop(), True, "noise is missing"),
    "a noise level without draws": (lambda c: c["noise"]["error"].__setitem__(0, []), True, "noise is missing"),
    "a block without growth": (lambda c: c["stability"]["log_growth"]["power"].pop(), True, "stability is missing"),
    "no bound": (lambda c: c["stability"].update(log_bound=[]), True, "stability is missing"),
    "no search": (lambda c: c["stability"]["log_end_to_end"].pop("random"), True, "stability is missing"),
    "a loss without end": (lambda c: c["noise"]["loss"][0].__setitem__(0, math.inf), True, "noise.loss"),
    "no noise error": (lambda c: c["noise"]["error"][0].__setitem__(0, math.nan), True, "noise.error"),
    "a noise error above 1": (lambda c: c["noise"]["error"][0].__setitem__(0, 1.5), True, "noise.error"),
    "an odd noise level": (lambda c: c["noise"]["levels"].__setitem__(0, math.nan), True, "noise.levels"),
    "a bound without end": (lambda c: c["stability"]["log_bound"].__setitem__(0, math.inf), True, "log_bound"),
    "no growth": (lambda c: c["stability"]["log_growth"]["power"].__setitem__(0, math.nan), True, "log_growth"),
    "no end": (lambda c: c["stability"]["log_end_to_end"].update(random=math.nan), True, "log_end_to_end"),
    "no step in stability": (lambda c: c["stability"].update(step_sizes=[math.nan]), True, "stability.step_sizes"),
    "no step size": (lambda c: c["step_sizes"]["layer1"][0].__setitem__(0, math.nan), True, "step_sizes is missing"),
    "no time": (lambda c: c.update(wall_seconds=math.nan), True, "wall_seconds"),
    "a time before the start": (lambda c: c.update(wall_seconds=-1.0), True, "wall_seconds"),
    "a time beyond floats": (lambda c: c.update(wall_seconds=10**400), True, "wall_seconds must be a number"),
    "influence of nothing": (
        lambda c: c["final"].update(descriptor_influence=None),
        True,
        "final.descriptor_influence",
    ),
    "an error above 1": (lambda c: c["final"]["test"].update(error=1.5), True, "final.test.error"),
    "an error below 0": (lambda c: c["final"]["test"].update(error=-1), True, "final.test.error"),
    "an error beyond floats": (lambda c: c["final"]["test"].update(error=10**400), True, "final.test.error"),
    "an epoch's error above 1": (lambda c: c["epochs"][0]["test"].update(error=1.5), True, "epoch 1: test.error"),
    "a loss beyond float32": (lambda c: c["epochs"][0]["train"].update(loss=1e300), True, "epoch 1: train.loss"),
    "epochs beyond floats": (lambda c: c["recipe"]["run"].update(epochs=10**400), True, "2 of 1000"),
    "another seed": (lambda c: c["recipe"]["run"].update(seed=7), True, "seed is 0, not 7"),
    "another kind": (lambda c: c.update(kind="benchmark"), True, "kind is 'benchmark', not 'training'"),
    "a setting of settings": (lambda c: c["recipe"]["data"].update(size={"a": 1}), True, "recipe.data.size"),
    "a wrong type": (lambda c: c.update(seed="0"), True, "seed must be a whole number"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_record_is_named_and_the_others_still_count(folder, case):
    change, seal, complaint = CASES[case]
    bad = sorted(folder.glob("*.json"))[0]
    rewrite(bad, change, seal)
    records, problems = report.load_records(folder)
    assert len(records) == 3
    assert len(problems) == 1
    assert str(bad) in problems[0]
    assert complaint in problems[0]


DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"a": 1}', DEEP])
def test_a_file_that_is_no_record_is_named(folder, content):
    (folder / "stray.json").write_bytes(content)
    records, problems = report.load_records(folder)
    assert len(records) == 4
    assert [str(folder / "stray.json") in problem for problem in problems] == [True]


def test_records_that_were_put_aside_in_a_folder_below_do_not_count(folder):
    (folder / "old").mkdir()
    sorted(folder.glob("*.json"))[0].rename(folder / "old" / "aside.json")
    records, problems = report.load_records(folder)
    assert (len(records), problems) == (3, [])


def test_more_than_is_needed_does_no_harm(folder):
    rewrite(sorted(folder.glob("*.json"))[0], lambda content: content.update(further={"a": 1}), seal=True)
    records, problems = report.load_records(folder)
    assert (len(records), problems) == (4, [])


def test_every_truncation_is_noticed(folder):
    path = sorted(folder.glob("*.json"))[0]
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, len(whole) // 25):
        path.write_bytes(whole[:length])
        _, problems = report.load_records(folder)
        assert len(problems) == 1, length


def test_the_same_run_twice_counts_once(folder, tmp_path):
    first = sorted(folder.glob("*.json"))[0]
    (folder / "copy.json").write_bytes(first.read_bytes())
    records, _ = report.load_records(folder)
    report.write_page(records, {}, tmp_path / "page.html", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert f"{first}: the same run as {folder / 'copy.json'}" in text
    assert text.count(first.name) == 1  # not among the records behind the page
