"""Imports run one way only. The table is the architecture: who may import whom, directly."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "timestepper"

METHOD = {"equations", "controllers", "reparam", "fused", "models", "adapters", "api", "inspection", "saving"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "equations": set(),
    "controllers": {"equations"},
    "reparam": {"controllers"},
    "fused": {"equations", "controllers"},
    "models": set(),
    "adapters": {"models"},
    "api": {"equations", "controllers", "reparam", "fused", "adapters"},
    "inspection": {"api", "adapters", "equations"},
    "saving": {"api", "files"},
    "stability": {"equations", "api", "adapters"},
    "data": set(),
    "engine": {"files", "fused"},
    "bench": METHOD | {"engine", "experiment"},
    "experiment": METHOD | {"stability", "data", "engine", "files", "report"},
    "report": {"files"},
}
LEAVES = {"errors"}  # anyone may import these


def parts() -> dict[str, list[Path]]:
    """Top-level modules and packages of the library with their files."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        found.setdefault(path.relative_to(SOURCE).parts[0].removesuffix(".py"), []).append(path)
    return {name: files for name, files in found.items() if name not in ("__init__", "__main__", "cli")}


def imported(path: Path) -> set[str]:
    """Parts of the library that a file imports, wherever in the file the import stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("timestepper.")}


@pytest.mark.parametrize("part", parts())
def test_imports_run_one_way(part):
    assert part in ALLOWED, f"say in {__file__} what {part} may import"
    for path in parts()[part]:
        wrong = imported(path) - ALLOWED[part] - LEAVES - {part}
        assert not wrong, (
            f"{path.relative_to(SOURCE)} imports {sorted(wrong)}; {part} may import {sorted(ALLOWED[part])}"
        )


def test_the_table_has_no_cycle():
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {part for part, wanted in ALLOWED.items() if part not in done and wanted <= done}
        assert ready, f"cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready


def test_the_report_never_imports_torch():
    for path in parts().get("report", []):
        text = path.read_text()
        assert "import torch" not in text
        assert "from torch" not in text


def test_only_adapters_and_data_and_benchmarks_know_foreign_models():
    for part, files in parts().items():
        for path in files:
            foreign = [
                line for line in path.read_text().splitlines() if line.strip().startswith(("import timm", "from timm "))
            ]
            assert not foreign or part in ("adapters", "bench"), f"{path}: {foreign}"
