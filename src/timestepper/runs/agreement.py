"""Several processes of one run must have one recipe, one folder and the same images."""

import os
import secrets

import torch

from timestepper.data import Dataset
from timestepper.engine.distributed import Group
from timestepper.engine.rundir import mark
from timestepper.errors import DataError, RecipeError, RunDirectoryError
from timestepper.files import digest
from timestepper.recipe.load import as_dict
from timestepper.runs.run import Run


def check_recipe(run: Run, group: Group) -> None:
    """All processes must have one recipe, and see the folder that rank 0 writes to.

    After a restart rank 0 may be on another machine. Data may lie elsewhere there, and be read by other workers.
    """
    recipe = as_dict(run.recipe)
    recipe["data"] |= {"root": None, "workers": 0}
    number = torch.tensor(secrets.randbits(62), device=group.device)
    group.broadcast([number])
    sign = mark(run.path, int(number))
    group.agree(sign.touch)
    mine = [int(digest(recipe)[:15], 16), os.path.exists(sign)]
    theirs = group.gather(torch.tensor(mine, device=group.device)).tolist()

    def refuse() -> None:
        sign.unlink()
        where = run.path.absolute()
        for rank, (told, seen) in enumerate(theirs):
            if not seen:
                raise RunDirectoryError(
                    f"{where}: rank {rank} cannot see what rank 0 writes there; choose a --run-dir that all "
                    "machines share, by the same name"
                )
            if told != mine[0]:
                raise RecipeError(
                    f"{where}: rank {rank} was started with another recipe than rank 0; give the same command on "
                    "every machine"
                )

    group.agree(refuse)


def check_images(data: Dataset, group: Group) -> None:
    """Data may lie elsewhere on another machine, but must be the same."""
    mine = [int(data.sha256[:15], 16), len(data.train), len(data.test)]
    theirs = group.gather(torch.tensor(mine, device=group.device)).tolist()

    def refuse() -> None:
        for rank, told in enumerate(theirs):
            if told != mine:
                raise DataError(
                    f"rank {rank} has other images than rank 0 ({told[1]} to train and {told[2]} to test on there, "
                    f"{mine[1]} and {mine[2]} here, or other names or sizes); give data.root the same everywhere"
                )

    group.agree(refuse)
