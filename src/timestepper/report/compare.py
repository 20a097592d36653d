"""Which groups may be compared, with which plain network, and how far apart they are: for tables, plots and words."""

from collections.abc import Iterable, Sequence

from timestepper.report import quantities
from timestepper.report.groups import Group, Task
from timestepper.report.statistics import Estimate, difference, mean_of


def by_task(groups: Iterable[Group]) -> dict[Task, list[Group]]:
    """Groups that may be compared, plain first."""
    bundles: dict[Task, list[Group]] = {}
    for group in groups:
        bundles.setdefault(group.task, []).append(group)
    return bundles


def plain_of(groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if group.plain), None)


def same_start_of(groups: Sequence[Group]) -> Group | None:
    """The plain network whose blocks start at half their size, as a controller's do: what a controller must beat."""
    return next((group for group in groups if group.subject == "plain, last norm starts at 0.5"), None)


def differences(groups: Sequence[Group], base: Group | None = None) -> list[tuple[Group, Estimate]]:
    """Each group's test error minus that of the base, which is the plain network where none is named."""
    base = base or plain_of(groups)
    if base is None:
        return []
    theirs = mean_of(base.values(quantities.test_error).values())
    others = [(group, mean_of(group.values(quantities.test_error).values())) for group in groups if group is not base]
    return [(group, difference(ours, theirs)) for group, ours in others]
