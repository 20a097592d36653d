"""``--cluster local``: jobs that are processes of this machine, through the same code as jobs of Slurm."""

import json
import os
import signal
import subprocess
import sys

import pytest
from cluster_runs import SEEDS, STEPS, SWEEP, hold, jobs_of, shown, statuses, told
from outcomes import remains
from watching import alive, children, wait_for

LOCAL = (*SWEEP, "--processes", "2", "--cluster", "local")


def ended(cli, *command):
    """Once no job is left, what the runs are."""
    states = wait_for(
        lambda: None if "running" in (found := shown(cli(*command, "--status"))).values() else found, pause=0.5
    )
    return [states[name] for name in SEEDS]


def test_jobs_are_told_killed_and_given_again_and_nothing_is_trained_twice(place, cli, undisturbed):
    first = cli(*LOCAL)
    assert shown(first) == dict.fromkeys(SEEDS, "running")
    assert first.out.count("job ") == 2 + 3
    together, alone = jobs_of(place)
    assert (together["runs"], alone["runs"]) == (SEEDS[:2], SEEDS[2:])
    told_to_stop, killed = hold(place, SEEDS[1], SEEDS[2])
    assert shown(cli(*LOCAL)) == dict.fromkeys(SEEDS, "running")
    assert len(jobs_of(place)) == 2
    os.kill(killed, signal.SIGKILL)
    os.kill(told_to_stop, signal.SIGUSR2)  # as its time limit does
    os.kill(told_to_stop, signal.SIGCONT)
    assert ended(cli, *LOCAL) == ["finished", "finished", "interrupted"]
    assert told(place, together["id"]).count("going on at step") == 2  # by itself
    again = cli(*LOCAL)
    assert shown(again) == {SEEDS[0]: "finished", SEEDS[1]: "finished", SEEDS[2]: "running"}
    (stopped,) = hold(place, SEEDS[2])
    os.kill(int(jobs_of(place)[-1]["id"]), signal.SIGTERM)  # as a person does: it is not to begin again by itself
    os.kill(stopped, signal.SIGCONT)
    assert ended(cli, *LOCAL) == ["finished", "finished", "interrupted"]
    cli(*LOCAL)
    assert [job["runs"] for job in jobs_of(place)] == [SEEDS[:2], SEEDS[2:], SEEDS[2:], SEEDS[2:]]
    assert ended(cli, *LOCAL) == ["finished"] * 3
    assert told(place, jobs_of(place)[-1]["id"]).count("going on at step") == 1
    assert {name: remains(place / "runs" / name) for name in SEEDS} == undisturbed
    assert all(status["step"] == STEPS for status in statuses(place).values())


def test_a_job_that_is_killed_saves_its_runs_and_those_it_did_not_come_to_have_not_failed(place, cli, undisturbed):
    command = (*SWEEP, "--jobs", "1", "--cluster", "local")
    cli(*command)
    (pid,) = hold(place, SEEDS[0])
    os.kill(int(jobs_of(place)[0]["id"]), signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not alive(pid))
    outcome = cli(*command, "--status")
    assert shown(outcome) == dict.fromkeys(SEEDS, "interrupted")
    assert outcome.out.count("has ended without it; the same command goes on") == 2
    stopped = statuses(place)
    assert list(stopped) == SEEDS[:1]
    assert stopped[SEEDS[0]]["state"] == "interrupted"  # saved: it had noticed
    cli(*command)
    assert ended(cli, *command) == ["finished"] * 3
    assert f"going on at step {stopped[SEEDS[0]]['step']} " in told(place, jobs_of(place)[-1]["id"])
    assert {name: remains(place / "runs" / name) for name in SEEDS} == undisturbed


def test_a_job_that_is_killed_while_it_starts_trains_nothing(place, cli):
    command = (*SWEEP, "--cluster", "local")
    cli(*command)
    job = int(jobs_of(place)[0]["id"])
    (task,) = wait_for(lambda: children(job))
    os.kill(task, signal.SIGSTOP)
    os.kill(job, signal.SIGKILL)
    wait_for(lambda: not alive(job))
    os.kill(task, signal.SIGCONT)
    wait_for(lambda: not alive(task))
    assert statuses(place) == {}
    assert shown(cli(*command, "--status")) == dict.fromkeys(SEEDS, "interrupted")


def test_a_job_loads_torch_only_when_it_understands_signals(place, cli):
    cli(*SWEEP, "--cluster", "local")
    job = int(jobs_of(place)[0]["id"])
    (task,) = wait_for(lambda: children(job))
    os.kill(task, signal.SIGSTOP)  # it is ended with the test
    (given,) = (place / "runs" / "jobs").glob("*_submitted.pkl")
    look = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look, given]).returncode == 0


def test_a_recipe_whose_runs_would_lie_among_the_files_of_jobs_is_refused(place, cli):
    (place / "jobs.toml").write_text("")
    line = cli("sweep", "jobs.toml", "--cluster", "local").refused()
    assert line == f"{place}/runs/jobs is for the files of jobs, not for runs; give the recipe another name than jobs"


def test_one_that_cannot_begin_leaves_the_other_alone(place, cli):
    command = (*SWEEP[:-6], "model.name=cifar/resnet8,cifar/densenet40", "model.last_norm_init=0.5")
    cli(*command, "--cluster", "local")
    (job,) = jobs_of(place)
    outcome = wait_for(lambda: None if "running" in (found := cli(*command, "--status")).out else found, pause=0.5)
    assert list(shown(outcome).values()) == ["finished", "failed"]
    log = f"runs/jobs/{job['id']}_0_log.out"
    assert f"job {job['id']} has ended without it" in outcome.out
    assert outcome.err.startswith(
        f"warning: job {job['id']} has ended without smoke/digits/"
        "model.last_norm_init=0.5,data.batch_size=256,run.epochs=8/model.name=cifar-densenet40;"
    )
    assert outcome.err.endswith(f" see {log}\n")
    assert "failed: model.last_norm_init" in (place / log).read_text()


SET = """
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=2", "data.batch_size=256", "run.tensorboard=false", "runtime.device=cpu"]
hours = 0.01
"""


def test_reproduce_trains_measures_and_records_in_jobs(place, cli):
    (place / "mini.toml").write_text(SET)
    first = cli("reproduce", "mini.toml", "--cluster", "local", "--jobs", "2")
    assert first.code == 0, first.err
    assert "running job" in first.out
    assert cli("reproduce", "mini.toml", "--cluster", "local", "--jobs", "2").code == 0
    assert len(jobs_of(place)) == 1
    wait_for(lambda: "2 of 2 runs done" in cli("reproduce", "mini.toml", "--list").out, pause=0.5)
    last = cli("reproduce", "mini.toml", "--cluster", "local", "--jobs", "2")
    assert "ResNet-8, digits, 2 epochs, batch 256: plain" in last.out
    assert len(jobs_of(place)) == 1
    assert all("noise" in json.loads(file.read_text()) for file in (place / "results").glob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cluster", "slurm", "--cluster-option", "partion=x"], "partion=x: not known; did you mean partition?"),
        (["--cluster", "slurm", "--cluster-option", "partition=x"], "how long a job may take"),
        (["--cluster", "slurm", "--cluster-option", "time"], "write it as time=VALUE"),
        (["--cluster", "slurm", "--cluster-option", "time=9", "--cluster-option", "gpus-per-node=8"], "share one GPU"),
        (["--cluster", "local", "--cluster-option", "partition=x"], "not known; allowed are time, signal_delay_s"),
        (["--cluster", "local", "--cluster-option", "time=1:00"], "not a whole number of minutes"),
        (["--cluster", "local", "--cluster-option", "time=1"], "less than signal_delay_s, which is 90 seconds"),
        (["--cluster-option", "time=1"], "add --cluster slurm"),
    ],
)
def test_options_that_make_no_sense_are_one_line(place, cli, arguments, told):
    assert told in cli(*SWEEP, *arguments).refused()
    assert statuses(place) == {}
    assert jobs_of(place) == []


def test_without_slurm_it_is_named(place, cli, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    line = cli(*SWEEP, "--cluster", "slurm", "--cluster-option", "time=1").refused()
    assert line.startswith("there is no Slurm on this machine: squeue is not found")


def test_what_the_folders_say_is_shown_where_the_cluster_cannot_be_asked(place, cli, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    folder = place / "runs" / "jobs"
    folder.mkdir(parents=True)
    (folder / "timestepper-1.json").write_text(json.dumps({"cluster": "slurm", "runs": SEEDS, "id": "1"}))
    (folder / "timestepper-2.json").write_text("{")
    (folder / "timestepper-3.json").write_text('{"cluster": "local", "runs": "all"}')
    outcome = cli(*SWEEP, "--status")
    assert shown(outcome) == dict.fromkeys(SEEDS, "waiting")
    damaged, strange, silent = sorted(outcome.err.splitlines(), key=lambda line: "no Slurm" in line)
    assert "timestepper-2.json: not valid JSON" in damaged
    assert "timestepper-3.json: runs must be a list" in strange
    assert silent.startswith("warning: there is no Slurm on this machine")


def test_a_command_that_was_killed_before_it_submitted_leaves_no_trouble(place, cli):
    folder = place / "runs" / "jobs"
    folder.mkdir(parents=True)
    (folder / "timestepper-1.json").write_text(json.dumps({"cluster": "local", "runs": SEEDS}))
    outcome = cli(*SWEEP, "--status")
    assert shown(outcome) == dict.fromkeys(SEEDS, "waiting")
    assert outcome.err == ""
