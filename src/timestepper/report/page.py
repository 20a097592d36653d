"""One self-contained HTML page and the same tables as Markdown, from records and claims."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timestepper.files import make_folder, write_atomic
from timestepper.records.diverged import Diverged
from timestepper.records.record import Record
from timestepper.report import counts, figures, results, statistics, verdicts
from timestepper.report.claims import Claims
from timestepper.report.figures import Figure, Panel
from timestepper.report.groups import Arm, Label, group, how, label_of, repeated
from timestepper.report.summary import summarise
from timestepper.report.tables import Table, inline

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Computed:
    """What needs no run and is computed where the page is asked for, because this package never imports torch.

    ``counted`` and ``shapes`` are those of ``timestepper.counts``; ``solutions`` maps large, small and rkf to the label
    and the solution of Figure 1.
    """

    counted: dict[str, Any] | None = None
    shapes: dict[str, Any] = field(default_factory=dict)
    solutions: dict[str, Any] = field(default_factory=dict)


@dataclass
class Section:
    """A heading with what stands under it; ``note`` says why there is nothing."""

    name: str
    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    note: str = ""

    def __post_init__(self) -> None:
        self.figures = [figure for figure in self.figures if figure.panels]
        self.tables = [table for table in self.tables if table.rows]
        self.note = "" if self.figures or self.tables else self.note


def write_page(
    records: Sequence[Record],
    claims: Claims,
    out_html: Path,
    out_md: Path,
    title: str = "timestepper: paper and measurement",
    *,
    diverged: Sequence[Diverged] = (),
    problems: Sequence[str] = (),
    computed: Computed | None = None,
    pending: Table | None = None,
) -> None:
    """Write the page. Without claims it is a plain comparison of the runs; ``problems`` are shown as they are."""
    computed = computed or Computed()
    every = group(records, diverged)
    arms = [arm for arm in every if arm.runs]
    found = verdicts.judge(claims, every, computed.solutions)
    states = [verdict.state for verdict in verdicts.headline(found)]
    failed = results.diverged_table(diverged, label_of(every, claims))
    values: dict[str, Any] = {
        "title": title,
        "summary": summarise(arms, claims, found, computed.counted, label_of(arms, claims)),
        "sections": _sections(arms, claims, found, computed, pending, failed),
        "problems": [*problems, *repeated(records)],
    }
    html = render(**values, headline={state: states.count(state) for state in statistics.STATES if state in states})
    for path, text in ((out_html, html), (out_md, markdown(**values))):
        make_folder(path.parent)
        write_atomic(path, text.encode(errors="backslashreplace"))  # names of files may be no text


def _sections(
    arms: Sequence[Arm],
    claims: Claims,
    found: Sequence[verdicts.Verdict],
    computed: Computed,
    pending: Table | None,
    failed: Table,
) -> list[Section]:
    """What there is to show; of what the paper shows too, also that it is missing."""
    label = label_of(arms, claims)
    missing = "Not yet run." if claims else ""
    records = [record for arm in arms for record in arm.runs.values()]
    nothing = "There are no records yet: timestepper reproduce makes them."
    steps = (figures.final_steps, figures.step_sizes)
    sections = [
        Section("idea", "The idea", [_idea()]),
        Section(
            "results",
            "Results",
            [figures.comparison(arms, label)],
            [results.measured_table(arms, label), failed],
            missing,
        ),
        Section("claims", "What the paper says", tables=[results.verdict_table(found)]),
        Section("learning", "Learning", [figures.learning_curves(arms, label)], note=missing),
        Section("noise", "Noise", [figures.noise(arms, label)], [results.noise_table(arms, label)], missing),
        Section("depth", "Depth", [figures.depth(arms, lambda task, extra: how(task, claims, extra))], note=missing),
        Section(
            "steps", "Step sizes", [f(arms, label) for f in steps], [results.influence_table(arms, label)], missing
        ),
        Section("folding", "Folding", tables=[results.fold_table(arms, label)], note=missing),
        Section(
            "stability", "Stability", [figures.stability(arms, label)], [results.stability_table(arms, label)], missing
        ),
        Section("tables", "The paper's tables", tables=_paper_tables(claims, arms, label)),
        Section("counts", "Parameters, GFLOPs and shapes", tables=count_tables(claims, claims, computed)),
        Section("ivp", "An initial value problem", [figures.initial_value_problem(computed.solutions)]),
        Section("pending", "Not yet run", tables=[pending] if pending else []),
        Section("records", "Records", tables=[results.record_table(records)], note=nothing),
    ]
    return [section for section in sections if section.figures or section.tables or section.note]


def _idea() -> Figure:
    drawing = (FOLDER / "idea.svg").read_text(encoding="utf-8").replace(' xmlns="http://www.w3.org/2000/svg"', "")
    caption = (
        "A residual block is one Euler step of size 1 of a differential equation. Here every block has a step size of "
        "its own, dt, one number per channel between 0 and 1. A small LSTM runs over the depth of each stage and gives "
        "the step sizes. It is trained with the network and folded away afterwards: what remains is the plain network."
    )
    title = "A block takes a step, and the network learns how far"
    return Figure("idea-figure", title, caption, [Panel("", "", drawing)], legend=())


def tables_of(
    names: Sequence[str],
    records: Sequence[Record],
    claims: Claims,
    computed: Computed,
    shown: Sequence[Record] = (),
    diverged: Sequence[Diverged] = (),
) -> list[Table]:
    """The tables of some claims for a terminal; ``shown`` are the records to list one by one."""
    chosen = {name: claims[name] for name in names if name in claims}
    every, some = group(records, diverged), group(shown)
    arms, label = [arm for arm in every if arm.runs], label_of(every, claims)
    found = [v for v in verdicts.judge(claims, every, computed.solutions) if v.claim.name in chosen]
    makers = (results.measured_table, results.noise_table, results.stability_table)
    tables = [*(make(some, label) for make in makers), *_paper_tables(chosen, arms, label)]
    tables += [*count_tables(claims, chosen, computed), results.verdict_table(found)]
    return [table for table in tables if table.rows]


def _paper_tables(claims: Claims, arms: Sequence[Arm], label: Label) -> list[Table]:
    made = [results.paper_table(claim, arms, label) for claim in claims.values()]
    return made + [results.steps_table(claim, arms, label) for claim in claims.values() if claim.steps]


def count_tables(claims: Claims, chosen: Claims, computed: Computed) -> list[Table]:
    """Tables of the chosen claims that need no run."""
    return [] if computed.counted is None else counts.tables(claims, chosen, computed.counted, computed.shapes)


def render(**values: Any) -> str:
    """The page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(FOLDER)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(style=style, **values)


def markdown(title: str, summary: Sequence[str], sections: Sequence[Section], problems: Sequence[str]) -> str:
    """Its words and tables."""
    lines = [f"# {inline(title)}", "", *(f"{inline(line)}\n" for line in summary)]
    if problems:
        lines += ["## Files that could not be used", "", *(f"- {inline(problem)}" for problem in problems), ""]
    for section in sections:
        if section.tables or section.note:
            lines += [f"## {inline(section.title)}", ""]
            lines += [f"{inline(section.note)}\n"] if section.note else []
            lines += [table.markdown() for table in section.tables]
    return "\n".join(lines).rstrip() + "\n"
