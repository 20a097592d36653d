"""Groups of runs with chosen figures, as light as the checks allow: for verdicts on built cases and for simulations."""

from types import SimpleNamespace

from timestepper.records.record import Final, Noise, Outcome
from timestepper.records.subject import subject as subject_named
from timestepper.report.claims import Claim, Place, Side, Statement
from timestepper.report.groups import Arm, Task
from timestepper.report.verdicts import headline, judge

PLAIN, LSTM = Side(controller="plain"), Side(controller="lstm")
PLACE, DIGITS = Place("digits", "cifar/resnet8"), Place("digits")


def statement(check, quantity="test_error", **keys):
    """About lstm and plain on the digits, unless it says otherwise."""
    sides = {} if "group" in keys else {"low": LSTM, "high": PLAIN}
    return Statement("s", "text", check, quantity, **({"on": (PLACE,)} | sides | keys))


def task(model="cifar/resnet8", epochs=2, data="digits"):
    return Task(data, model, epochs, 64)


def runs(subject, records, where=None):
    return Arm(where or task(), subject_named(subject), dict(enumerate(records)))


def ended(subject, errors, where=None):
    """Runs that end with these test errors, in percent."""
    finals = (Final(Outcome(error / 100)) for error in errors)
    made = (SimpleNamespace(final=final, noise=None, step_sizes={}) for final in finals)
    return runs(subject, made, where)


def noisy(subject, *errors, levels=(0.0, 1.0), where=None):
    """Runs with these errors at the noise levels, in percent, each with its loss, which is the error / 10."""
    tables = (Noise(levels, tuple((e / 100,) for e in each), tuple((e / 10,) for e in each)) for each in errors)
    return runs(subject, (SimpleNamespace(noise=table) for table in tables), where)


def trained(subject, *curves, where=None):
    """Runs with these test errors, in percent, epoch by epoch; None where an epoch was not evaluated."""
    parts = ([None if error is None else error / 100 for error in curve] for curve in curves)
    made = (SimpleNamespace(error=part, final=Final(Outcome(part[-1]))) for part in parts)
    return runs(subject, made, where)


def stepped(*stages, where=None, subject="lstm"):
    """Runs with these step sizes: for each a list of stages, for each of these its blocks."""
    tables = ({f"layer{n}": tuple((b,) for b in blocks) for n, blocks in enumerate(each)} for each in stages)
    return runs(subject, (SimpleNamespace(step_sizes=table) for table in tables), where)


def verdicts(asked, *groups, solutions=None):
    return judge({"c": Claim("c", "Table 9", "a claim", statement=(asked,))}, groups, solutions or {})


def asked_together(*cases):
    """The main verdict on every case, a statement with its groups, among all of them."""
    claim = Claim("c", "Table 9", "a claim", statement=tuple(asked for asked, *_ in cases))
    return headline(judge({"c": claim}, [each for _, *groups in cases for each in groups]))


def verdict(asked, *groups):
    """The main one."""
    (found,) = headline(verdicts(asked, *groups))
    return found
