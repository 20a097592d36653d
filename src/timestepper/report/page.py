"""One self-contained HTML page and the same tables as Markdown, from records and claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timestepper.files import make_folder, write_atomic
from timestepper.report import counts, figures, results, step_figures, verdicts
from timestepper.report.claims import Claims
from timestepper.report.figures import Figure, Panel
from timestepper.report.groups import Group, Task, condition_labels, group, how, repeated
from timestepper.report.names import data_name, model_name
from timestepper.report.records import Record
from timestepper.report.results import Pending
from timestepper.report.summary import summarise
from timestepper.report.tables import Table, inline

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Computed:
    """What needs no run and is computed where the page is asked for, because this package never imports torch.

    ``counted`` and ``shapes`` are those of ``experiment.counts``; ``solutions`` maps large, small and rkf to the
    solutions of Figure 1 with label, times, values, steps and error, and exact to its times and values.
    """

    counted: dict[str, Any] | None = None
    shapes: dict[str, Any] = field(default_factory=dict)
    solutions: dict[str, Any] | None = None


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it; ``note`` says why there is nothing."""

    name: str
    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""

    @property
    def empty(self) -> bool:
        return not (self.figures or self.tables or self.note)


def write_page(
    records: Sequence[Record],
    claims: Claims,
    out_html: Path,
    out_md: Path,
    title: str = "timestepper: paper and measurement",
    *,
    problems: Sequence[str] = (),
    computed: Computed | None = None,
    pending: Sequence[Pending] = (),
) -> None:
    """Write the page. Without claims it is a plain comparison of the runs; ``problems`` are shown as they are."""
    computed = computed or Computed()
    groups = group(records)
    found = verdicts.judge(claims, groups, computed.solutions)
    lines = summarise(groups, claims, found, computed.counted, _label(groups, claims))
    sections = [part for part in _sections(groups, claims, found, computed, pending) if not part.empty]
    problems = [*problems, *repeated(records)]
    html = _render(title=title, summary=lines, sections=sections, problems=problems, headline=_headline(found))
    for path, text in ((out_html, html), (out_md, _markdown(title, lines, sections, problems))):
        make_folder(path.parent)
        write_atomic(path, text.encode())


def _sections(
    groups: Sequence[Group],
    claims: Claims,
    found: Sequence[verdicts.Verdict],
    computed: Computed,
    pending: Sequence[Pending],
) -> list[Section]:
    label = _label(groups, claims)
    missing = "Not yet run." if claims else ""

    def drawn(name: str, title: str, *parts: Figure | Table | None) -> Section:
        shown = tuple(part for part in parts if isinstance(part, Figure))
        tables = tuple(part for part in parts if isinstance(part, Table))
        return Section(name, title, shown, tables, "" if shown or tables else missing)

    measured = results.measured_table(groups, label) if groups else None
    return [
        Section("idea", "The idea", figures=(_idea(),)),
        drawn("results", "Results", figures.comparison(groups, label), measured),
        Section("claims", "What the paper says", tables=(results.verdict_table(found),) if found else ()),
        drawn("learning", "Learning", figures.learning_curves(groups, label)),
        drawn("noise", "Noise", figures.noise(groups, label), results.noise_table(groups, label)),
        drawn("depth", "Depth", figures.depth(groups, lambda task, extra: how(task, claims, extra))),
        drawn(
            "steps",
            "Step sizes",
            step_figures.final_steps(groups, label),
            step_figures.step_sizes(groups, label),
            results.influence_table(groups, label),
        ),
        drawn("folding", "Folding", results.fold_table(groups, label)),
        drawn(
            "stability",
            "Stability",
            step_figures.stability(groups, label),
            results.stability_table(groups, label),
        ),
        Section("tables", "The paper's tables", tables=tuple(_paper_tables(claims, groups, label))),
        Section("counts", "Parameters, GFLOPs and shapes", tables=tuple(_count_tables(claims, computed))),
        Section("ivp", "An initial value problem", figures=_first_figure(computed)),
        Section("pending", "Not yet run", tables=(results.pending_table(pending),) if pending else ()),
        _records([record for group in groups for record in group.runs.values()]),
    ]


def _idea() -> Figure:
    drawing = (_FOLDER / "idea.svg").read_text(encoding="utf-8").replace(' xmlns="http://www.w3.org/2000/svg"', "")
    caption = (
        "A residual block is one Euler step of size 1 of a differential equation. Here every block has a step size of "
        "its own, dt, one number per channel between 0 and 1. A small LSTM runs over the depth of each stage and gives "
        "the step sizes. It is trained with the network and folded away afterwards: what remains is the plain network."
    )
    title = "A block takes a step, and the network learns how far"
    return Figure("idea-figure", title, caption, (Panel("", "", drawing),), legend=())


def tables_of(
    names: Sequence[str],
    records: Sequence[Record],
    claims: Claims,
    computed: Computed,
    shown: Sequence[Record] = (),
    counts_only: bool = False,
) -> list[Table]:
    """The tables of some claims for a terminal; ``shown`` are the records to list one by one."""
    chosen = {name: claims[name] for name in names if name in claims}
    if counts_only:
        return _count_tables(chosen, computed)
    groups = group(records)
    label = _label(groups, claims)
    tables = [results.measured_table(group(shown), label)] if shown else []
    measured = (results.noise_table(group(shown), label), results.stability_table(group(shown), label))
    tables += [table for table in measured if table is not None]
    tables += _paper_tables(chosen, groups, label)
    tables += _count_tables(chosen, computed)
    found = [v for v in verdicts.judge(claims, groups, computed.solutions) if v.claim.name in chosen]
    return tables + ([results.verdict_table(found)] if found else [])


def _records(records: Sequence[Record]) -> Section:
    note = "" if records else "There are no records yet: timestepper reproduce makes them."
    return Section("records", "Records", tables=(results.record_table(records),) if records else (), note=note)


def _first_figure(computed: Computed) -> tuple[Figure, ...]:
    return (step_figures.initial_value_problem(computed.solutions),) if computed.solutions else ()


def _paper_tables(claims: Claims, groups: Sequence[Group], label: Callable[[Task], str]) -> list[Table]:
    made = [results.paper_table(claim, groups, label) for claim in claims.values() if claim.row]
    return made + [results.steps_table(claim, groups, label) for claim in claims.values() if claim.steps]


def _count_tables(claims: Claims, computed: Computed) -> list[Table]:
    return [] if computed.counted is None else counts.tables(claims, computed.counted, computed.shapes)


def _label(groups: Sequence[Group], claims: Claims) -> Callable[[Task], str]:
    """What a reader needs to know of a task: network, data, schedule, and what else tells it from others."""
    extras = condition_labels(group.task for group in groups)

    def label(task: Task) -> str:
        return ", ".join([model_name(task.model), data_name(task.data), how(task, claims, extras.get(task, ""))])

    return label


def _headline(found: Sequence[verdicts.Verdict]) -> dict[str, int]:
    states = [verdict.state for verdict in verdicts.headline(found)]
    return {state: states.count(state) for state in verdicts.STATES if state in states}


def _render(**values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["groupby_in_order"] = _together
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(style=style, **values)


def _together(panels: Sequence[figures.Panel]) -> list[tuple[str, list[figures.Panel]]]:
    """Panels by their group, in the order in which the groups come."""
    found: dict[str, list[figures.Panel]] = {}
    for panel in panels:
        found.setdefault(panel.group, []).append(panel)
    return list(found.items())


def _markdown(title: str, summary: Sequence[str], sections: Sequence[Section], problems: Sequence[str]) -> str:
    lines = [f"# {inline(title)}", "", *(f"{inline(line)}\n" for line in summary)]
    if problems:
        lines += ["## Files that could not be used", "", *(f"- {inline(problem)}" for problem in problems), ""]
    for section in sections:
        if section.tables or section.note:
            lines += [f"## {inline(section.title)}", ""]
            lines += [f"{inline(section.note)}\n"] if section.note else []
            lines += [table.markdown() for table in section.tables]
    return "\n".join(lines).rstrip() + "\n"
