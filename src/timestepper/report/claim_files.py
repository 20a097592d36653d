"""Claim files: read, checked, and a message for each that has a mistake."""

import tomllib
from pathlib import Path

from timestepper.errors import RecordError, first_line
from timestepper.report import strict
from timestepper.report.claim_checks import check
from timestepper.report.claims import FOLDER, Claim, Claims


def load_claims(folder: Path = FOLDER) -> tuple[Claims, list[str]]:
    """All claims by name, and a message for each file that has a mistake; the other files are not affected."""
    claims: Claims = {}
    problems = []
    files = sorted(folder.glob("*.toml"))
    owners: dict[str, Path] = {}
    for path in files:
        try:
            claim = read_claim(path)
            owners = _with_statements(owners, claim, path)
            claims[path.stem] = claim
        except RecordError as error:
            problems.append(str(error))
    if not files:
        problems.append(f"{folder} holds no claim files (*.toml); give the folder with --claims")
    return claims, problems


def _with_statements(owners: dict[str, Path], claim: Claim, path: Path) -> dict[str, Path]:
    """The file of every statement by its id, with those of one more file; a second owner would hide the first."""
    owners = dict(owners)
    for statement in claim.statement:
        if statement.id in owners:
            raise RecordError(f"{path}: statement {statement.id}: {owners[statement.id]} has this id already")
        owners[statement.id] = path
    return owners


def read_claim(path: Path) -> Claim:
    """One claim file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also endless numbers and brackets
        raise RecordError(f"{path}: not readable as TOML: {first_line(error)}") from None
    claim = strict.build(Claim, table, str(path))
    if claim.name != path.stem:
        raise RecordError(f"{path}: name is {claim.name!r}; it must be the file's name, {path.stem!r}")
    check(claim, str(path))
    return claim
