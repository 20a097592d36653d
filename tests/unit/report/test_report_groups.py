from dataclasses import replace

import pytest

from timestepper.recipe.load import as_dict, load
from timestepper.records.diverged import Diverged
from timestepper.records.subject import subject_of
from timestepper.report import groups
from timestepper.report.claims import load_claims
from timestepper.report.groups import condition_labels, group, how, schedule_label, task_of
from timestepper.report.names import model_name, unknown_model


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        (["controller.kind=none"], "plain"),
        (["controller.kind=two_fc"], "two fc"),
        (["controller.kind=fixed", "controller.value=0.01"], "fixed 0.01"),
        (["controller.kind=none", "model.last_norm_init=0.5"], "plain, last norm starts at 0.5"),
        (["controller.kind=none", "model.last_norm_init=0"], "plain, last norm starts at 0"),
        (["controller.kind=none", "model.last_norm_init=1"], "plain"),
        (["controller.kind=none", "model.name=cifar/nf_resnet56", "model.start=fixup"], "plain, network start fixup"),
        (["controller.kind=lstm", "controller.weight_decay=0"], "lstm, weight decay 0.0"),
        (["controller.kind=lstm", "controller.descriptor_gradient=false"], "lstm, descriptor gradient false"),
    ],
)
def test_what_was_put_on_the_network(changes, subject):
    assert subject_of(as_dict(load("paper/cifar10", changes))).label == subject


def test_settings_that_came_later_leave_a_run_among_its_older_twins():
    now = as_dict(load("paper/cifar10"))
    later = {"model": ("options", "start"), "optimiser": ("kind", "beta2", "label_smoothing")}
    older = {s: {k: v for k, v in table.items() if k not in later.get(s, ())} for s, table in now.items()}
    assert groups.task_from(older) == groups.task_from(now)
    for change in ("model.options=width=8", "optimiser.kind=adamw", "optimiser.label_smoothing=0.1"):
        assert groups.task_from(as_dict(load("paper/cifar10", [change]))) != groups.task_from(now)


def like(record, *changes, name="paper/cifar10"):
    return replace(record, recipe=as_dict(load(name, changes)))


def test_a_short_schedule_is_marked(records):
    claims, _ = load_claims()
    paper = task_of(like(records[0]))
    short = task_of(like(records[0], "run.epochs=120", "data.batch_size=128"))
    assert schedule_label(paper, claims) == ("paper's schedule (300 epochs, batch 64)", True)
    assert schedule_label(short, claims) == ("short schedule (120 epochs, batch 128)", False)
    other = task_of(like(records[0], "run.epochs=120", "data.batch_size=128", "optimiser.lr=0.01"))
    assert schedule_label(other, claims) == ("short schedule (120 epochs, batch 128, lr 0.01)", False)
    assert schedule_label(task_of(records[0]), claims) == ("2 epochs, batch 64", True)
    del claims["training"]  # a typo in that file must not make a short run the paper's own
    assert schedule_label(short, claims) == ("120 epochs, batch 128, the paper's schedule is not known", False)


def test_a_run_as_long_as_the_paper_s_with_other_settings_is_not_the_paper_s(records):
    claims, _ = load_claims()
    warm, slow = (task_of(like(records[0], c)) for c in ("schedule.warmup_epochs=5", "optimiser.lr=0.05"))
    assert schedule_label(warm, claims) == ("other schedule (300 epochs, batch 64, warmup epochs 5.0)", False)
    assert schedule_label(slow, claims) == ("other schedule (300 epochs, batch 64, lr 0.05)", False)
    assert how(slow, claims, "lr 0.05, precision tf32").endswith("batch 64, lr 0.05), precision tf32")
    bare = task_of(like(records[0], "data.augment=none"))
    assert schedule_label(bare, claims) == ("other schedule (300 epochs, batch 64, augment none)", False)
    for change, told in (
        ("optimiser.label_smoothing=0.1", "label smoothing 0.1"),
        ("optimiser.kind=adamw", "optimiser adamw"),
        ("data.accumulate=8", "parts of a batch 8"),
    ):
        odd = task_of(like(records[0], change))
        assert schedule_label(odd, claims) == (f"other schedule (300 epochs, batch 64, {told})", False)
    several = task_of(replace(like(records[0]), world=8))  # each norm sees an eighth of the batch
    assert schedule_label(several, claims) == ("other schedule (300 epochs, batch 64, parts of a batch 8)", False)
    imagenet = like(records[0], name="paper/imagenet")
    for processes in (1, 8):  # which the paper has
        task = task_of(replace(imagenet, world=processes))
        assert schedule_label(task, claims) == ("paper's schedule (100 epochs, batch 256)", True)
    assert schedule_label(task_of(like(records[0], name="paper/cifar100")), claims)[1]


def test_how_a_run_was_computed_does_not_part_it_from_others(records):
    fast = like(records[0], "runtime.compile=true", "data.workers=3", "run.checkpoint_epochs=1", "data.root=/elsewhere")
    slow = like(records[0], "runtime.compile=false", "runtime.cuda_graph=false")
    assert task_of(fast) == task_of(slow)


def test_what_else_differs_is_said(records):
    tasks = [task_of(like(records[0], f"runtime.precision={precision}")) for precision in ("tf32", "bf16")]
    assert list(condition_labels(tasks).values()) == ["", "precision bf16"]
    assert list(condition_labels([*tasks, tasks[1]]).values()) == ["precision tf32", ""]


def test_the_same_length_with_another_batch_is_another_schedule_and_not_a_short_one(records):
    claims, _ = load_claims()
    task = task_of(like(records[0], "data.batch_size=128"))
    assert schedule_label(task, claims) == ("other schedule (300 epochs, batch 128)", False)


def test_runs_on_other_data_of_the_same_name_are_kept_apart(records):
    tasks = [task_of(replace(records[0], data_sha256=digit * 64)) for digit in "ab"]
    assert tasks[0] != tasks[1]
    assert list(condition_labels(tasks).values()) == ["", "data sha256 bbbbbbbb"]


def numbered(record, seed, path, luck=0.0):
    """A run of its own where it has luck of its own."""
    return replace(record, seed=seed, path=path, loss=[loss + luck for loss in record.loss])


def counted(runs):
    return [(seed, record.path) for found in group(runs) for seed, record in found.runs.items()]


def test_a_file_that_was_copied_counts_once_whatever_its_seed_and_name(records):
    runs = [numbered(records[0], seed, path) for seed, path in ((12, "a"), (2, "b"), (12, "c"))]
    runs.append(numbered(records[0], 1, "d", luck=1.0))
    assert counted(runs) == counted(runs[::-1]) == [(1, "d"), (2, "b")]
    told = [f"{path}: the same run as b; left out, remove one of them" for path in "ac"]
    assert groups.repeated(runs) == told


def test_of_a_run_with_two_results_none_counts(records):
    """Whichever has the first name: trained twice with one seed, or copied and changed."""
    other = replace(records[0].final, test=replace(records[0].final.test, error=0.5))
    again, changed = numbered(records[0], 2, "a", luck=0.5), replace(numbered(records[0], 7, "a"), final=other)
    for twin in (again, changed, replace(changed, seed=2)):
        for name in ("a", "c"):
            runs = [numbered(records[0], 2, "b"), replace(twin, path=name), numbered(records[0], 1, "d", luck=1.0)]
            assert counted(runs) == [(1, "d")]
            both = ((name, "b"), ("b", name))
            told = {
                f"{one}: the same run as {two} with another result; none counts, keep one of them" for one, two in both
            }
            assert set(groups.repeated(runs)) == told


def test_runs_on_several_gpus_and_controllers_of_two_modules_are_groups_of_their_own(records):
    one, eight = numbered(records[0], 0, "a"), replace(numbered(records[0], 1, "b", luck=1.0), world=8)
    assert counted([one, eight]) == [(0, "a"), (1, "b")]
    assert len(group([one, eight])) == 2
    assert list(condition_labels(map(task_of, (one, eight))).values()) == ["", "processes 8"]
    recipe = as_dict(load("paper/cifar10"))
    mine = [recipe | {"controller": recipe["controller"] | {"kind": "mine", "module": name}} for name in ("m0", "m1")]
    assert [subject_of(each).label for each in mine] == ["mine, module m0", "mine, module m1"]
    assert subject_of(mine[0] | {"controller": {"kind": "mine"}}).label == "mine"  # as older records have it
    assert subject_of(recipe | {"controller": recipe["controller"] | {"module": "m0"}}).label == "lstm"


def test_a_run_that_diverged_counts_whether_or_not_it_has_ended_since(records):
    record = records[0]
    same = {name: getattr(record, name) for name in ("name", "recipe", "data_sha256", "device", "commit", "versions")}
    failed = Diverged(kind="diverged", seed=7, step=9, error="nan", **same)
    (found,) = group([record], [failed, replace(failed, seed=3), replace(failed, seed=record.seed)])
    assert (list(found.runs), found.diverged) == ([record.seed], (record.seed, 3, 7))
    assert found.within(4).diverged == (7,)
    assert found.within(0, 6).diverged == tuple(seed for seed in (record.seed, 3) if seed <= 6)
    (none,) = group([], [failed])
    assert (none.runs, none.diverged) == ({}, (7,))


def test_networks_come_in_the_order_of_their_depth_and_the_longest_training_first(records):
    changes = [f"model.name=cifar/resnet{depth}" for depth in (110, 20, 56)]
    assert [found.task.depth for found in group(like(records[0], change) for change in changes)] == [20, 56, 110]
    longest = group([like(records[0], "run.epochs=20"), like(records[0])])
    assert [found.task.epochs for found in longest] == [300, 20]
    sizes = [like(records[0], "run.epochs=20", f"data.batch_size={size}") for size in (128, 64)]
    batches = group(numbered(run, 0, f"{luck}", luck) for luck, run in enumerate(sizes))
    assert [found.task.batch_size for found in batches] == [64, 128]


@pytest.mark.parametrize("change", ["data.batch_size=127", "optimiser.lr=0.3", "runtime.precision=tf32"])
def test_a_run_that_was_copied_to_another_condition_is_no_second_setting(records, change):
    runs = [replace(like(records[0]), path="a"), replace(like(records[0], change), path="b")]
    assert counted(runs) == []
    assert all("none counts" in told for told in groups.repeated(runs))
    assert len(group([runs[0], numbered(runs[1], 0, "b", luck=1.0)])) == 2


def test_real_runs_group_by_controller_with_plain_first(records):
    groups = group(records)
    assert [(found.subject.label, list(found.runs)) for found in groups] == [("plain", [0, 1]), ("lstm", [0, 1])]


def test_names_for_people():
    named = {"timm/resnext50_32x4d": "ResNeXt-50", "timm/seresnet101": "SENet-101", "cifar/cliquenet": "CliqueNet"}
    named |= {"cifar/nf_resnet56": "norm-free ResNet-56", "timm/vit_tiny_patch16_224": "ViT-Ti"}
    assert {model: model_name(model) for model in named} == named
    assert model_name("mine/odd_net") == "mine/odd_net"
    assert not any(map(unknown_model, named))
    assert unknown_model("cifar/nf_resnet57") == "CIFAR ResNets have 6n+2 layers, such as 56"
