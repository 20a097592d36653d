"""What a recipe says of its controller: whether it is known, with as many numbers as it takes."""

import importlib

from timestepper import names
from timestepper.errors import RecipeError, first_line
from timestepper.recipe.schema import ControllerSettings


def check_controller(controller: ControllerSettings, source: str) -> None:
    """Import what registers it, and refuse what is not known."""
    if controller.module is not None:
        _import(controller.module, source)
    kind, written = names.kind_of(controller.kind), "(" in controller.kind
    if kind != "none" and kind not in names.CONTROLLERS:
        more = "" if controller.module else "; one of your own needs controller.module, which registers it"
        raise RecipeError(
            f"{source}: controller.kind cannot be {controller.kind!r} (allowed: one of none, {names.known()}{more})"
        )
    options = () if kind == "none" else names.CONTROLLERS[kind].options
    if len(options) == 1 and not written and controller.value is None:
        example = names.CONTROLLERS[kind].example.partition("(")[2].rstrip(")")
        raise RecipeError(f"{source}: controller.kind {kind} needs controller.value, for example {example}")
    if controller.value is not None and (len(options) != 1 or written):
        raise RecipeError(f"{source}: controller.value is not for controller.kind {controller.kind}")
    if kind == "fixed" and controller.value == 0:
        raise RecipeError(f"{source}: controller.value cannot be 0.0 (allowed: more than 0)")
    if controller.start not in names.STARTS and not _positive(controller.start):
        raise RecipeError(f"{source}: controller.start must be paper, identity or a number, not {controller.start!r}")


def _import(module: str, source: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # of a foreign module, which can raise anything
        raise RecipeError(
            f"{source}: controller.module {module!r} cannot be imported: {type(error).__name__}: {first_line(error)}; "
            "is its folder on PYTHONPATH?"
        ) from error


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
