"""Imports run one way only. The table is the architecture: who may import whom, directly."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "timestepper"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "terminal": set(),
    "validate": set(),
    "files": set(),
    "torchrun": set(),
    "equations": set(),
    "names": set(),
    "controllers": {"equations", "names"},
    "reparam": {"controllers"},
    "kernels": {"equations", "controllers"},
    "models": set(),
    "sites": {"controllers", "models", "reparam"},
    "adapters": {"sites"},
    "stepped": {"reparam"},
    "root": {"stepped"},
    "looking": {"controllers"},
    "controlled": {"equations", "controllers", "kernels", "sites", "reparam", "root", "looking"},
    "links": {"reparam", "controlled", "root", "stepped"},
    "warned": {"controllers", "reparam"},
    "steps": {"reparam", "kernels", "sites", "controllers", "stepped", "root", "looking", "controlled", "links"},
    "api": {"looking", "links", "equations", "sites", "controllers", "stepped", "steps", "warned"},
    "training": {"steps"},
    "inspection": {"api", "sites", "steps", "equations", "looking", "links"},
    "tensors": {"files"},
    "saving": {"api", "controllers", "sites", "steps", "files", "warned", "tensors"},
    "integrations": {"api", "links", "saving", "steps", "root", "tensors"},
    "stability": {"equations", "api", "sites"},
    "data": {"files"},
    "engine": {"files", "kernels", "torchrun"},
    "records": {"names", "files", "recipe"},
    "bench": {"names", "controllers", "sites", "api", "inspection", "engine", "records"},
    "counts": {"equations", "sites", "api", "inspection"},
    "recipe": {"names", "engine"},
    "runs": {
        "names",
        "controllers",
        "sites",
        "api",
        "inspection",
        "tensors",
        "stability",
        "data",
        "engine",
        "files",
        "torchrun",
        "records",
        "recipe",
    },
    "sweeps": {"data", "engine", "files", "records", "recipe", "runs"},
    "report": {"files", "names", "recipe", "records"},
}
LEAVES = {"errors", "terminal", "validate"}  # anyone may import these
FOREIGN = {"timm": {"sites", "bench"}, "torchvision": {"sites", "data"}}  # and who may import them


def parts() -> dict[str, list[Path]]:
    """Top-level modules and packages of the library with their files."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        found.setdefault(path.relative_to(SOURCE).parts[0].removesuffix(".py"), []).append(path)
    return {name: files for name, files in found.items() if name not in ("__init__", "__main__", "cli")}


def names(path: Path) -> set[str]:
    """What a file imports, in dotted names, wherever in the file the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported(path: Path) -> set[str]:
    """Parts of the library that a file imports."""
    return {name.split(".")[1] for name in names(path) if name.startswith("timestepper.")}


@pytest.mark.parametrize("part", parts())
def test_imports_run_one_way(part):
    assert part in ALLOWED, f"say in {__file__} what {part} may import"
    for path in parts()[part]:
        wrong = imported(path) - ALLOWED[part] - LEAVES - {part}
        assert not wrong, (
            f"{path.relative_to(SOURCE)} imports {sorted(wrong)}; {part} may import {sorted(ALLOWED[part])}"
        )


def test_the_table_allows_nothing_that_is_not_used():
    used = {part: set().union(*map(imported, files)) for part, files in parts().items()}
    assert {part: sorted(allowed - used.get(part, set())) for part, allowed in ALLOWED.items()} == {
        part: [] for part in parts()
    }


def test_the_table_has_no_cycle():
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {part for part, wanted in ALLOWED.items() if part not in done and wanted <= done}
        assert ready, f"cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready


@pytest.mark.parametrize("library", FOREIGN)
def test_few_know_foreign_models(library):
    paths = [path for path in SOURCE.rglob("*.py") if library in {name.split(".")[0] for name in names(path)}]
    assert {path.relative_to(SOURCE).parts[0] for path in paths} == FOREIGN[library], paths
