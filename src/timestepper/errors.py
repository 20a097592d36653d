"""Every error that a user can cause, one type per kind.

Each message is one line that says what is wrong, where, and what to do. The command line prints it without a
traceback and leaves with the exit code of the type.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class TimestepperError(Exception):
    """Base of all of them."""

    exit_code = 2


class Leave(SystemExit):
    """The end of a process that we want, with its exit code; any other ``SystemExit`` is foreign code's."""


# -- the method ------------------------------------------------------------------------------------------------------


class UnknownNameError(TimestepperError, ValueError):
    """A model, controller, recipe or data set name that does not exist; the message lists those that do."""


class NoSitesError(TimestepperError, ValueError):
    """No residual branch was found in the network."""


class UnsupportedSiteError(TimestepperError, ValueError):
    """A residual branch was found whose last layer cannot take a step size into its parameters."""


class AlreadyAttachedError(TimestepperError, ValueError):
    """The model has controllers already."""


class NotAttachedError(TimestepperError, TypeError):
    """The call needs an attached model and got another one."""


class WrappedModelError(TimestepperError, ValueError):
    """The model is compiled, wrapped (DDP, DataParallel, FSDP) or traced where controllers have to go on first."""


class StepSizeError(TimestepperError, ValueError):
    """A step size or controller option that makes no sense, such as a fixed step of zero."""


class NonFiniteError(TimestepperError, ValueError):
    """A NaN or an infinity where a number is needed."""


class ActivationCheckpointingError(TimestepperError, RuntimeError):
    """Activation checkpointing in its reentrant form, which cannot train step sizes."""


class MismatchError(TimestepperError, ValueError):
    """Tensors, parts or inputs that do not fit the network; the message names them."""


# -- data, recipes and runs ------------------------------------------------------------------------------------------


class DataError(TimestepperError, ValueError):
    """A data set that is missing, incomplete, damaged or laid out in another way."""


class MissingPackageError(TimestepperError, ModuleNotFoundError):
    """A package that only a part of the library needs is not installed; the message says what installs it."""


class RecipeError(TimestepperError, ValueError):
    """A recipe key or value that is not allowed; the message names file, key and the allowed values."""


class CheckpointError(TimestepperError, ValueError):
    """A checkpoint or exported file that is damaged, foreign or does not fit."""


class RunDirectoryError(TimestepperError, OSError):
    """A run directory that is locked by another process, unreadable or not writable."""


class DiskFullError(TimestepperError, OSError):
    """No space left for a file; the message says how much is needed and where."""

    exit_code = 1


class DivergedError(TimestepperError, ArithmeticError):
    """The loss or the gradient is not finite; training stopped before ``step``, which would have spoilt the weights."""

    exit_code = 1

    def __init__(self, message: str, step: int = 0):
        super().__init__(message)
        self.step = step


class LoaderError(TimestepperError, RuntimeError):
    """A data loader worker died or ran out of memory."""

    exit_code = 1


class DistributedError(TimestepperError, RuntimeError):
    """Another process of the job is gone, silent or cannot be reached."""

    exit_code = 1


class LaunchError(TimestepperError, ValueError):
    """Environment variables of a distributed job that make no sense."""


class ClusterError(TimestepperError, RuntimeError):
    """A cluster that is not there or refuses a job, or an option for it that makes no sense."""


class StabilityError(TimestepperError, ValueError):
    """A network or input for which a stability figure cannot be computed; the message names the layer."""


class RecordError(TimestepperError, ValueError):
    """A damaged, hand-edited or foreign result record, or a claim file with a mistake."""


_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "failed to map segment")
_EXTRAS = {  # package as it is imported: which part of pyproject.toml's optional dependencies brings it
    **dict.fromkeys(("typer", "rich", "PIL", "torchvision", "timm", "sklearn", "tensorboard"), "train"),
    **dict.fromkeys(("scipy", "jinja2", "matplotlib"), "report"),
    "submitit": "cluster",
}


def missing_package(error: BaseException) -> str | None:
    """How to install the package that is missing; None for any other error."""
    name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in _EXTRAS:
        return None
    return f"this needs {name}, which is not installed: pip install 'timestepper[{_EXTRAS[name]}]'"


@contextmanager
def naming_missing_packages() -> Iterator[None]:
    """Around what imports a package of an extra where it is needed: its absence is an error that says what to do."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        raise MissingPackageError(advice) from error


def lacks_memory(error: BaseException) -> bool:
    """Whether an allocator, of which there are many, has found no room."""
    return isinstance(error, MemoryError) or any(sign in _said(error) for sign in _NO_MEMORY)


def in_words(error: BaseException) -> str:
    """A foreign error as one line of ours; the allocators' in words, for they tell of themselves."""
    text = f"{type(error).__name__}: {first_line(error)}"
    if lacks_memory(error):
        return f"not enough memory ({text}); use a smaller batch or network, or another machine"
    return text


def first_line(error: BaseException) -> str:
    """What a foreign error says, short enough for a line of ours; its type, where it says nothing or cannot."""
    return _said(error).strip().partition("\n")[0][:200] or type(error).__name__


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
