"""The page as text: complete, self-contained, accessible, whatever the records."""

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from timestepper.errors import DiskFullError, RunDirectoryError
from timestepper.recipe.load import as_dict, load
from timestepper.report import page, verdicts
from timestepper.report.claims import Claim, Statement, load_claims
from timestepper.report.groups import group
from timestepper.report.page import Section, write_page
from timestepper.report.statistics import CONTRADICTED, EQUAL, NO_EFFECT, NOT_RUN, OPEN, SUPPORTED
from timestepper.report.summary import summarise
from timestepper.report.tables import Table, TableCell


class Tags(HTMLParser):
    """Every start tag with its attributes, in order."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, *names):
        return [(tag, attrs) for tag, attrs in self.found if tag in names]


def test_it_is_one_file_that_loads_nothing(whole_page):
    text = whole_page.read_text()
    tags = Tags(text)
    assert not tags.all("script", "img", "iframe", "object", "embed")
    assert [attrs["href"] for _, attrs in tags.all("link")] == ["data:,"]
    assert "url(" not in text
    assert "@import" not in text
    assert not re.findall(r"https?://", text)


def test_a_screen_reader_finds_its_way(whole_page):
    tags = Tags(whole_page.read_text())
    assert tags.all("html")[0][1]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in tags.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    identifiers = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))
    drawings = tags.all("svg")
    assert len(drawings) == len(tags.all("desc")) > 8
    for _, attrs in drawings:
        assert attrs["role"] == "img"
        assert set(attrs["aria-labelledby"].split()) <= set(identifiers)
    assert len(tags.all("table")) == len(tags.all("caption")) > 8
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for _, attrs in tags.all("th"))
    targets = [attrs["href"].removeprefix("#") for _, attrs in tags.all("a")]
    assert targets
    assert set(targets) <= set(identifiers)


def test_what_neighbouring_rows_share_is_said_once_above_them(tmp_path):
    """On the page; Markdown, the terminal and JSON, which have no such headings, say the whole name in every row."""
    headings = {"a": "one <task>", "b": "one <task>", "c": "another", "d": ""}
    made = Table("t", "caption", ("Run", "Error"), [(TableCell(n, under=u), "1") for n, u in headings.items()])
    section = Section("s", "Title", tables=(made,))
    text = page.render(title="", summary=(), sections=[section], problems=[], headline={})
    bodies = re.findall(r"<tbody.*?</tbody>", text, re.S)
    heads = [re.findall(r'<th scope="(\w+)"[^>]*>(.*?)</th>', body) for body in bodies]
    assert heads == [
        [("rowgroup", "one &lt;task&gt;"), ("row", "a"), ("row", "b")],
        [("rowgroup", "another"), ("row", "c")],
        [("row", "d")],
    ]
    assert text.count('colspan="2"') == 2
    full = ["one <task>: a", "one <task>: b", "another: c", "d"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in made.markdown().splitlines()[4:]] == [
        name.replace("<", "&lt;") for name in full
    ]
    assert [row[0]["text"] for row in made.as_dict()["rows"]] == full


def test_descriptions_are_not_empty(whole_page):
    found = re.findall(r"<desc[^>]*>(.*?)</desc>", whole_page.read_text())
    assert found
    assert all(len(text) > 15 for text in found)


def test_text_from_files_is_escaped(whole_page):
    assert "A &lt;title&gt; &amp; more" in whole_page.read_text()


def test_the_same_tables_are_in_the_markdown(whole_page):
    text, markdown = whole_page.read_text(), whole_page.with_suffix(".md").read_text()
    captions = [re.sub(r"\s+", " ", c) for c in re.findall(r"<caption>(.*?)</caption>", text, re.S)]
    for caption in captions:
        assert f"**{caption.replace('&#39;', chr(39))}**" in markdown
    assert "ResNet-506, CIFAR-10, lstm | fig5 |" in markdown
    assert "results/x.json: the checksum does not fit" in markdown


def test_every_section_of_the_issue_is_there(whole_page):
    text = whole_page.read_text()
    names = ("results", "claims", "learning", "noise", "depth", "steps", "stability", "tables", "counts", "ivp")
    for name in (*names, "pending", "records"):
        assert f'id="{name}-section"' in text, name
    depth = text[text.index('id="depth-section"') :]
    assert "Not yet run." in depth[: depth.index("</section>")]


def test_without_records_everything_else_is_still_reported(tmp_path):
    claims, _ = load_claims()
    write_page([], claims, tmp_path / "page.html", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "No finished runs yet." in text
    assert "There are no records yet" in text
    assert "**Table 2: Controllers compared on ImageNet, ResNet-50**" in text
    assert not any(f"| {state} |" in text for state in (CONTRADICTED, EQUAL, OPEN))


@pytest.mark.parametrize("blocked", ["page.html", "page.md"])
def test_a_folder_in_the_place_of_the_page_is_told_in_one_line(tmp_path, blocked):
    (tmp_path / blocked).mkdir()
    with pytest.raises(RunDirectoryError) as raised:
        write_page([], {}, tmp_path / "page.html", tmp_path / "page.md")
    assert str(raised.value) == f"cannot write {tmp_path / blocked}: Is a directory; it is a folder, name a file"


def test_a_name_that_is_no_text_is_spelled_out(tmp_path):
    write_page([], {}, tmp_path / "page.html", tmp_path / "page.md", problems=["\udcff.json: no record"])
    assert all("\\udcff.json" in (tmp_path / name).read_text() for name in ("page.html", "page.md"))


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("the old page")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DiskFullError, match=r"No space left for .*page\.html: "):
        write_page([], {}, tmp_path / "page.html", tmp_path / "page.md")
    assert (tmp_path / "page.html").read_text() == "the old page"


def test_without_claims_it_is_a_comparison_of_two_runs(records, tmp_path):
    write_page(records[:2], {}, tmp_path / "page.html", tmp_path / "page.md", title="Digits")
    text = (tmp_path / "page.html").read_text()
    assert "not yet run" not in text.lower()
    assert "paper" not in re.sub(r"--paper", "", text.lower())


def test_the_first_paragraph_says_which_number_is_whose(records, tmp_path):
    plain = [record for record in records if record.recipe["controller"]["kind"] == "none"]
    gentle = {**plain[0].recipe, "model": {**plain[0].recipe["model"], "last_norm_init": 0.5}}
    runs = [*plain, *(replace(record, recipe=gentle) for record in plain)]
    write_page(runs, {}, tmp_path / "page.html", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert re.search(r"test error [\d. ±]+% \(plain\) and [\d. ±]+% \(plain, last norm starts at 0.5\), a diff", text)


def test_the_first_paragraph_counts_the_verdicts_and_says_which_rest_on_less():
    claim = Claim("c", "Table 9", "a claim")
    states = (SUPPORTED, OPEN, OPEN, *(NOT_RUN,) * 3)
    found = [
        verdicts.Verdict(claim, Statement(str(number), "", "lower", "test_error"), state, "")
        for number, state in enumerate(states)
    ]
    told = "Of the paper's 6 statements: 1 supported, 2 open, 3 not run"
    assert summarise([], {}, found, None, str)[-1] == f"{told}."
    others = [replace(verdict, main=False, state=CONTRADICTED) for verdict in found]
    assert summarise([], {}, [*others, *found], None, str)[-1] == f"{told}."
    lesser = [replace(found[0], short=True), replace(found[1], stand_in=True), *found[2:]]
    rest = "; 2 of the 3 that were looked at rest on a short schedule or a smaller stand-in."
    assert summarise([], {}, lesser, None, str)[-1] == told + rest
    lesser[0] = replace(lesser[0], alone=True)
    assert summarise([], {}, lesser, None, str)[-1] == f"{told}; certain by themselves only: 1{rest}"


def test_the_first_paragraph_is_about_the_task_with_most_runs(records):
    once = [replace(r, recipe={**r.recipe, "run": {**r.recipe["run"], "epochs": 1}}) for r in records if r.seed == 0]
    lines = summarise(group([*once, *records]), {}, [], None, lambda task: f"{task.epochs} epochs")
    assert lines[0] == "6 finished runs."
    assert lines[1].startswith("2 epochs: ")


def test_the_first_paragraph_begins_with_the_paper_s_own_schedule(records):
    """Even where fewer runs follow it than a short one; what the paper has no schedule for is no such task."""
    claims, _ = load_claims()

    def on_cifar(chosen, *overrides):
        kinds = (f"controller.kind={record.recipe['controller']['kind']}" for record in chosen)
        recipes = (as_dict(load("paper/cifar10", [*overrides, kind])) for kind in kinds)
        return [replace(record, recipe=recipe) for record, recipe in zip(chosen, recipes, strict=True)]

    own = on_cifar([record for record in records if record.seed == 0])
    short = on_cifar(records, "run.epochs=120", "data.batch_size=128")
    lines = summarise(group([*own, *short, *records]), claims, [], None, lambda task: f"{task.epochs} epochs")
    assert [line.partition(":")[0] for line in lines[1:]] == ["300 epochs", "120 epochs"]
    assert len(summarise(group([*own, *records]), claims, [], None, str)) == 3
    assert len(summarise(group(own), claims, [], None, str)) == 2


def test_a_short_schedule_is_marked_wherever_it_appears(records, tmp_path):
    claims, _ = load_claims()
    short = ["run.epochs=120", "data.batch_size=128"]
    kinds = {"none": "controller.kind=none", "lstm": "controller.kind=lstm"}
    pretended = [
        replace(r, recipe=as_dict(load("paper/cifar10", [*short, kinds[r.recipe["controller"]["kind"]]])))
        for r in records
    ]
    write_page(pretended, claims, tmp_path / "page.html", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|") and "ResNet-56, CIFAR-10" in line]
    measured = [line for line in lines if "not run" not in line]
    assert len(measured) > 4
    assert all("short schedule (120 epochs, batch 128)" in line for line in measured)
    assert "rest on a short schedule or a smaller stand-in" in text
    found = verdicts.judge(claims, group(pretended))
    seen = [verdict for verdict in found if verdict.state not in (NOT_RUN, NO_EFFECT)]
    assert all(verdict.short for verdict in seen if verdict.statement.check != "settled")


def test_the_report_never_imports_torch(results, tmp_path):
    program = (
        "import sys; from pathlib import Path; from timestepper.records import load_records\n"
        "from timestepper.report.claims import load_claims; from timestepper.report.page import write_page\n"
        f"records, _ = load_records(Path({str(results)!r})); claims, _ = load_claims()\n"
        f"write_page(records, claims, Path({str(tmp_path / 'a.html')!r}), Path({str(tmp_path / 'a.md')!r}))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_contrast_in_light_and_dark():
    style = (page.FOLDER / "page.css").read_text()
    themes = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme))
        paper = luminance(colours["paper"])
        for name in ("ink", "soft", "plain", "stepped", "quiet", "good", "bad"):
            lighter, darker = sorted((paper, luminance(colours[name])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (name, colours[name])


def test_markdown_shows_what_strings_say_and_does_nothing_of_it(tmp_path):
    hostile = "<script>alert(1)</script> [x](javascript:1) \x1b[31m & a\n# heading"
    made = Table("t", hostile, (hostile, "Error"), [(hostile, "1")], notes=(hostile,))
    sections = [Section("s", hostile, tables=(made,)), Section("n", "Nothing", note=hostile)]
    text = page.markdown(hostile, [hostile], sections, [hostile])
    assert text.count("&lt;script>alert(1)&lt;/script> [x]\\(javascript:1) \\x1b[31m &amp; a # heading") == 9
    assert "<script" not in text
    assert not [line for line in text.splitlines() if line.startswith("# heading")]
