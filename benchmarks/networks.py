"""Which networks can be attached to: every one of networks.json is discovered, trained for a step, folded, compared.

    python benchmarks/networks.py [--only timm|torchvision|transformers] [--names NAME …] [--again] [--jobs 8]

Weights are random. Each network runs in a process of its own, with a limit of time; what is there already is kept, so
that the work can be done in pieces. Writes benchmarks/results/networks.json and docs/networks.md after every network.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path

import torch
from engine_runs import write
from network_builders import build, floating

import timestepper
from timestepper.files import write_atomic
from timestepper.records import commit
from timestepper.sites.example import calls_of

HERE = Path(__file__).parent
LIST = HERE / "networks.json"
RESULTS = HERE / "results" / "networks.json"
PAGE = HERE.parent / "docs" / "networks.md"
ENOUGH = 0.9  # of a network's residual sums, accepted and proved: then it counts
LIBRARIES = ("timm", "torchvision", "transformers")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=LIBRARIES)
    options.add_argument("--names", nargs="*")
    options.add_argument("--seconds", type=float, default=300, help="limit for each network")
    options.add_argument("--again", action="store_true", help="also those that have a result")
    options.add_argument("--jobs", type=int, default=1, help="networks at once")
    options.add_argument("--one", nargs=2, metavar=("LIBRARY", "NAME"), help="measure one, in this process")
    chosen = options.parse_args()
    if chosen.one:
        print(json.dumps(measure(*chosen.one)))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wanted = [
        (library, name)
        for library, name in listed()
        if (not chosen.only or chosen.only == library)
        and (not chosen.names or name in chosen.names)
        and (chosen.again or f"{library}/{name}" not in results)
        and is_there(library, name)
    ]
    # The longest first, so that no job is left alone with them at the end.
    wanted.sort(key=lambda which: -results.get("/".join(which), {}).get("seconds", 0))
    source = commit()
    where = {"commit": source[:9] + "+" * source.endswith("+"), "versions": versions()}
    with ThreadPoolExecutor(chosen.jobs) as jobs:
        running = {jobs.submit(in_its_own_process, *which, chosen.seconds): "/".join(which) for which in wanted}
        for done in as_completed(running):
            key = running[done]
            results[key] = done.result() | where
            print(key, results[key], flush=True)
            write(RESULTS, dict(sorted(results.items())))
            write_atomic(PAGE, page(results).encode())
    write_atomic(PAGE, page(results).encode())


def is_there(library: str, name: str) -> bool:
    """The list has networks of timm 1.0.30 that 1.0.29 did not have."""
    if library != "timm":
        return True
    import timm

    return timm.is_model(name)


def listed() -> list[tuple[str, str]]:
    """All networks of the list but those without residual sums."""
    found = json.loads(LIST.read_text())
    names = {
        "timm": [name for file in found["timm"].values() for name in file],
        "torchvision": [name for part in found["torchvision"].values() for name in part],
        "transformers": found["transformers"],
    }
    return [(library, n) for library in names for n in names[library] if n not in found["without"][library]]


def in_its_own_process(library: str, name: str, seconds: float) -> dict:
    command = [sys.executable, __file__, "--one", library, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {seconds:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2][:300] or f"exit code {done.returncode}"}
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def versions() -> str:
    told = {"Python": platform.python_version()} | {name: version(name) for name in ("torch", *LIBRARIES)}
    return ", ".join(f"{name} {number.partition('+')[0]}" for name, number in told.items())


def measure(library: str, name: str) -> dict:
    torch.manual_seed(0)
    net, example, loss = build(library, name)
    before = sums(net)
    began = time.perf_counter()
    found = timestepper.discover(net, example)
    seconds = time.perf_counter() - began
    result = {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "sites": sum(len(stage.sites) for stage in found.stages),
        "stages": len(found.stages),
        "share": round(found.share, 4),
        "error": max(found.errors.values(), default=None),
        "seconds": round(seconds, 1),
        "refused": sorted({f"{sum_.reason}" for sum_ in found.refused if sum_.residual}),
        "no residuals": sorted({sum_.reason for sum_ in found.refused if not sum_.residual}),
    }
    if not found.stages:
        return result
    untouched = sums(net) == before
    timestepper.attach(net, "lstm", sites=found)
    base = result["parameters"]
    result["controllers"] = round(sum(p.numel() for p in timestepper.controller_parameters(net)) / base, 4)
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4)
    loss(net).backward()
    missing = [n for n, p in net.controllers.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    optimiser.step()
    optimiser.zero_grad()
    net.eval()
    call, plain = calls_of(net, example)[-1], timestepper.fold(net)
    with torch.no_grad():
        attached, folded = (floating(call(each, torch.float32)) for each in (net, plain))
    if library == "transformers" and net.can_generate():
        ids = call.kwargs["input_ids"]
        result["writes the same"] = torch.equal(written(net, ids), written(plain, ids))
    scale = max(max((t.abs().max().item() for t in folded if t.numel()), default=0.0), 1e-30)
    difference = max(
        ((a - b).abs().max().item() for a, b in zip(attached, folded, strict=True) if a.numel()), default=0.0
    )
    return {**result, "folded": difference / scale, "untouched": untouched, "without gradient": missing}


def sums(net) -> dict[str, str]:
    """What tells whether weights and buffers are as they were; copies of them may not fit the memory."""
    state = net.state_dict().items()
    return {key: hashlib.sha256(value.contiguous().numpy().data).hexdigest() for key, value in state}


def written(net, ids):
    """What a network of language writes behind its example."""
    return net.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)


def counts(result: dict) -> bool:
    """Enough of its residual sums are proved, a training step works, and folding changes nothing."""
    good = not result.get("failed") and result["share"] >= ENOUGH and result["sites"] > 0
    good = good and result.get("writes the same", True)
    return good and result["folded"] < 1e-4 and result["untouched"] and not result["without gradient"]


BEGIN = """# Networks that work

More than 200 networks of three libraries, with random weights. For each of them the residual branches are discovered
and proved on a float64 copy, an LSTM controller is attached, one training step is made, and the folded network is
compared with the attached one; networks of language also have to write the same text. A network **works** if at least
90 % of its residual sums are accepted and proved, the training step works and folding changes nothing.
"""
END = """## How this was measured

`benchmarks/networks.py` runs [a list](../benchmarks/networks.json) that was written before anything was tuned, and
writes this page; the numbers are in [benchmarks/results/networks.json](../benchmarks/results/networks.json).

{measured}

Three things were changed after results had been seen. Four networks joined those without residual sums (the list says
which). Sums of different channels of one feature are no longer counted as residuals: because of that res2next50 and
efficientvit_m0 work. Neither are sums that join scales over residual blocks, as in detection networks with a feature
pyramid on a ResNet.
"""
COLUMNS = """- *sites*: residual branches that got a step size; *share*: of all residual sums of the network
- *proved error*: the largest relative error of the proof, in float64
- *controllers*: their parameters, as a share of the network's
- *folded differs by*: the largest difference between attached and folded outputs, relative to the largest output
"""


def page(results: dict) -> str:
    tables, totals = [], ["| library | listed | tried | work |", "| --- | --- | --- | --- |"]
    for library in LIBRARIES:
        names = [name for lib, name in listed() if lib == library]
        rows = {name: results[f"{library}/{name}"] for name in names if f"{library}/{name}" in results}
        totals.append(f"| {library} | {len(names)} | {len(rows)} | **{sum(map(counts, rows.values()))}** |")
        tables += [f"## {library}", ""]
        tables += ["| network | works | sites | share | proved error | controllers | folded differs by |"]
        tables += ["| --- | --- | --- | --- | --- | --- | --- |"]
        tables += [row(name, result) for name, result in rows.items()]
        if reasons := [f"- {name}: {why(result)}" for name, result in rows.items() if why(result)]:
            tables += ["", "Sums that were refused, with the first reason of each network:", "", *reasons]
        if missing := [name for name in names if name not in rows]:
            tables += ["", f"Not tried on this machine: {', '.join(missing)}."]
        tables.append("")
    return "\n".join([BEGIN, *totals, "", COLUMNS, *tables, END.format(measured=measured(results))])


def measured(results: dict) -> str:
    """At which commits, and with which versions."""
    found = Counter((r.get("commit", "a2a5451 or before"), r.get("versions", "")) for r in results.values())
    lines = [
        f"- {n} network{'s' * (n > 1)} at commit {where}{', ' * bool(told)}{told}"
        for (where, told), n in found.most_common()
    ]
    return "\n".join(lines)


def row(name: str, result: dict) -> str:
    if result.get("failed"):
        return f"| {name} | **no** | | | | | |"
    error = "" if result["error"] is None else f"{result['error']:.0e}"
    share = f"{100 * result['share']:.0f}&nbsp;%"
    controllers = f"{100 * result['controllers']:.1f}&nbsp;%" if "controllers" in result else ""
    folded = f"{result['folded']:.0g}" if "folded" in result else ""
    works = "yes" if counts(result) else "**no**"
    return f"| {name} | {works} | {result['sites']} | {share} | {error} | {controllers} | {folded} |"


def why(result: dict) -> str:
    if result.get("failed"):
        return result["failed"]
    reasons = result["refused"] or ([] if result["sites"] else result["no residuals"])
    if not reasons:
        return "" if counts(result) else "see the JSON"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0].replace("__", r"\_\_") + more


if __name__ == "__main__":
    main()
