"""The verb of operators who change nothing that is in the store, as a value."""

from typing import NamedTuple


class RecordAct(NamedTuple):
    """Write down what an operator did elsewhere."""

    actor: str
    act: str
    subject: str
    reason: str = ""
