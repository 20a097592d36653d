"""A real Slurm on this machine: T39. Skipped where it is not installed."""

import os
import random
import re
import signal
import subprocess

import pytest
from cluster_runs import BELOW, SEEDS, STEPS, SWEEP, hold, jobs_of, shown, statuses, told
from outcomes import remains
from watching import alive, wait_for

ON_SLURM = (*SWEEP, "--cluster", "slurm", "--cluster-option", "time=30", "--cluster-option", "signal_delay_s=10")


def settled(cli):
    """Once no job is left, what the runs are."""

    def states():
        found = shown(cli(*ON_SLURM, "--status"))
        return None if {"queued", "running"} & set(found.values()) else [found[name] for name in SEEDS]

    return wait_for(states, seconds=500, pause=0.5)


def turns(folder):
    """Where jobs have stopped their runs, and where they have taken them up again: run and step of each."""
    text = "\n".join(file.read_text() for file in (folder / "runs" / "jobs").glob("*_log.out"))
    stopped = re.findall(r"^(\S+): interrupted: stopped at step (\d+)", text, re.MULTILINE)
    return sorted(stopped), sorted(re.findall(r"^(\S+): going on at step (\d+)", text, re.MULTILINE))


def test_submitted_cancelled_and_given_again(slurm, place, cli, undisturbed):
    """And a partition that does not exist."""
    line = cli(*ON_SLURM, "--cluster-option", "partition=nowhere").refused()
    assert line.startswith("slurm does not take a job (time=30, partition=nowhere): ")
    assert line.endswith("Invalid partition name specified; nothing was submitted")
    assert jobs_of(place) == []
    first = cli(*ON_SLURM)
    assert set(shown(first).values()) <= {"queued", "running"}
    both, single = jobs_of(place)
    hold(place, SEEDS[0], SEEDS[2])
    assert set(shown(cli(*ON_SLURM)).values()) == {"running"}
    assert len(jobs_of(place)) == 2
    subprocess.run(["scancel", single["id"]], check=True)
    subprocess.run(["scontrol", "requeue", both["id"]], check=True)  # as an administrator does
    assert settled(cli) == ["finished", "finished", "interrupted"]
    assert 5 <= statuses(place)[SEEDS[2]]["step"] < STEPS
    assert shown(cli(*ON_SLURM))[SEEDS[2]] in ("queued", "running")
    assert [job["runs"] for job in jobs_of(place)] == [SEEDS[:2], SEEDS[2:], SEEDS[2:]]
    assert settled(cli) == ["finished"] * 3
    stopped, went_on = turns(place)
    assert stopped == went_on
    assert [name for name, _ in stopped] == SEEDS
    assert {name: remains(place / "runs" / name) for name in SEEDS} == undisturbed


# -- the full count: T39 -----------------------------------------------------------------------------------------------


def time_limit(slurm, job, pid):
    """As short as Slurm has it; the next turn of the job gets more."""
    taken = slurm.ask("squeue", "-h", "-j", job, "-o", "%M").split(":")
    subprocess.run(["scontrol", "update", f"jobid={job}", f"timelimit={int(taken[-2]) + 1}"], check=True)
    wait_for(lambda: slurm.ask("squeue", "-h", "-j", job, "-o", "%T") == "PENDING")
    subprocess.run(["scontrol", "update", f"jobid={job}", "timelimit=30"], check=True)


def preemption(slurm, job, pid):
    node = slurm.ask("squeue", "-h", "-j", job, "-o", "%N")
    urgent = ["sbatch", "-p", "urgent", "-w", node, "-c", "2", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)


def node_down(slurm, job, pid):
    node = slurm.ask("squeue", "-h", "-j", job, "-o", "%N")
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=test"], check=True)
    wait_for(lambda: slurm.ask("squeue", "-h", "-j", job, "-o", "%T") == "PENDING")
    wait_for(lambda: not alive(pid))
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=True)


def node_drained(slurm, job, pid):
    node = slurm.ask("squeue", "-h", "-j", job, "-o", "%N")
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"], check=True)
    subprocess.run(["scontrol", "requeue", job], check=True)


def cancelled(slurm, job, pid):
    subprocess.run(["scancel", job], check=True)


def killed(slurm, job, pid):
    """Nothing can be saved any more: what came after the last checkpoint is trained again."""
    os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repetition", range(2))
@pytest.mark.parametrize("event", [time_limit, preemption, node_down, node_drained, cancelled, killed])
def test_t39_full(event, repetition, slurm, place, cli, undisturbed, figure):
    by_itself = event not in (cancelled, killed)
    cli(*ON_SLURM)
    step = random.randrange(1, STEPS - 8)
    both = jobs_of(place)[0]["id"]
    (pid,) = hold(place, SEEDS[0], step=step)
    event(slurm, both, pid)
    states = settled(cli)
    if not by_itself:
        assert states == ["interrupted", "interrupted", "finished"]
        cli(*ON_SLURM)
        assert settled(cli) == ["finished"] * 3
    submitted = [job["runs"] for job in jobs_of(place)]
    assert submitted == [SEEDS[:2], SEEDS[2:]] + ([] if by_itself else [SEEDS[:2]])
    stopped, went_on = turns(place)
    assert {SEEDS[0], SEEDS[1]} <= {name for name, _ in went_on}
    assert went_on == ([(name, "0") for name in SEEDS[:2]] if event is killed else stopped)
    assert {name: remains(place / "runs" / name) for name in SEEDS} == undisturbed
    figure(event=event.__name__, step=step, went_on_at=went_on)


@pytest.mark.soak
def test_one_that_fails_is_not_tried_again_when_its_job_is_queued_again(slurm, place, cli):
    command = (*SWEEP[:-6], "optimiser.lr=0.1,1e9", *ON_SLURM[len(SWEEP) :])
    good, bad = (f"{BELOW}/optimiser.lr={rate}" for rate in ("0.1", "1000000000.0"))
    cli(*command)
    (job,) = jobs_of(place)
    wait_for(lambda: statuses(place).get(bad, {}).get("state") == "failed")
    hold(place, good, step=1)
    assert shown(cli(*command, "--status")) == {good: "running", bad: "failed"}
    subprocess.run(["scancel", "--signal=CONT", job["id"]], check=True)
    subprocess.run(["scancel", "--signal=USR2", job["id"]], check=True)  # as Slurm does before the time limit
    wait_for(lambda: not slurm.ask("squeue", "-h"), pause=0.5)
    assert shown(cli(*command, "--status")) == {good: "finished", bad: "failed"}
    assert told(place, job["id"]).count("going on at step") == 1
    assert told(place, job["id"]).count(f"{bad}: failed: ") == 1
    cli(*command)
    assert [job["runs"] for job in jobs_of(place)] == [[good, bad], [bad]]


@pytest.mark.soak
@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0, reason="may not hide a folder"
)
def test_a_folder_that_the_nodes_do_not_share_is_named(slurm, place, cli):
    (place / "runs").mkdir()
    slurm.end("slurmd-b")
    hidden = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {place}/runs && exec "$@"', "sh")
    slurm.start("slurmd-b", "-D", "-N", "b", program="slurmd", before=hidden)
    try:
        cli(*ON_SLURM, "--cluster-option", "nodelist=b")
        ended = wait_for(lambda: "queued" not in (found := cli(*ON_SLURM, "--status")).out and found, pause=0.5)
        assert list(shown(ended).values()) == ["failed"] * 3
        assert ended.err.splitlines() == [
            f"warning: job {job['id']} has ended without {', '.join(job['runs'])}; it left no word in runs/jobs: "
            "do the nodes share that folder?"
            for job in jobs_of(place)
        ]
        cli(*ON_SLURM, "--cluster-option", "nodelist=a")
        assert settled(cli) == ["finished"] * 3
    finally:
        slurm.end("slurmd-b")
        slurm.start("slurmd-b", "-D", "-N", "b", program="slurmd")


@pytest.mark.soak
def test_a_cluster_that_does_not_answer_is_named_and_the_folders_are_shown(slurm, place, cli):
    cli(*ON_SLURM)
    hold(place, SEEDS[2])
    slurm.end("slurmctld")
    try:
        wait_for(
            lambda: {"finished"} == {status["state"] for name, status in statuses(place).items() if name != SEEDS[2]}
        )
        assert "Slurm does not answer" in cli(*ON_SLURM).refused(code=1)
        outcome = cli(*ON_SLURM, "--status")
        assert list(shown(outcome).values()) == ["finished", "finished", "running"]
        assert outcome.err.startswith("warning: Slurm does not answer")
        assert len(jobs_of(place)) == 2
    finally:
        slurm.start("slurmctld", "-D")
        wait_for(lambda: slurm.ask("squeue", "--me") != "")
