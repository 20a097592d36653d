"""What was found in a network, as a table that prints itself."""

from collections import Counter
from dataclasses import dataclass

from timestepper.reparam import Entry
from timestepper.sites.discovery import NotTaken
from timestepper.sites.known import Stage

_COLUMNS = ("stage", "site", "absorbing layer", "rule", "proved error")


@dataclass(frozen=True)
class Discovery:
    """The sites of a network, each proved, and the sums that have none."""

    network: str
    stages: tuple[Stage, ...]
    errors: dict[str, float]  # by site: relative, on the attached network in float64
    refused: tuple[NotTaken, ...]

    @property
    def left_out(self) -> int:
        """How many residual sums take no step size."""
        return sum(sum_.residual for sum_ in self.refused)

    @property
    def share(self) -> float:
        """The share of residual sums that were accepted and proved."""
        accepted = sum(len(stage.sites) for stage in self.stages)
        residual = accepted + self.left_out
        return accepted / residual if residual else 0.0

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """(stage, site, absorbing layer, rule, proved error)."""
        return [
            (stage.name, site.path, ", ".join(site.last), rule(site.entries), f"{self.errors[site.path]:.1e}")
            for stage in self.stages
            for site in stage.sites
        ]

    def to_dict(self) -> dict:
        return {
            "sites": [dict(zip(_COLUMNS, row, strict=True)) for row in self.rows()],
            "refused": [{"sum": sum_.path, "reason": sum_.reason} for sum_ in self.refused],
        }

    def __str__(self) -> str:
        sites = sum(len(stage.sites) for stage in self.stages)
        lines = [f"{self.network}: {sites} sites in {len(self.stages)} stages"]
        lines += _aligned([_COLUMNS, *self.rows()])
        if self.refused:
            lines.append("sums without a step size:")
            alike = Counter(f"  {sum_.path or 'the network'}: {sum_.reason}" for sum_ in self.refused)
            lines += [line + (f" ({times} sums)" if times > 1 else "") for line, times in alike.items()]
        return "\n".join(lines)


def rule(entries: tuple[Entry, ...]) -> str:
    """How the step size enters, in words."""
    parts = []
    for entry in entries:
        times = "/dt" if entry.divide else "*dt"
        where = ""
        if entry.length is not None:
            where = f"[{entry.row}:{entry.row + entry.length}]"
            times += f"[{entry.begin}:{entry.begin + entry.length}]"
        along = f" (dimension {entry.dimension})" if entry.dimension else ""
        parts.append(f"{'1+' if entry.offset else ''}{entry.name}{where}{times}{along}")
    return ", ".join(parts)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
