"""A process beside another one, without a second process."""

import dataclasses

from jaxcoreset.data.processes import ProcessGroup


class Second(ProcessGroup):
    """The second of two processes, as far as it takes arrays of the first one, by name."""

    def __init__(self, of_first):
        self.of_first = of_first

    def first(self, state):
        return {name: self.of_first.get(name, value) for name, value in state.items()}


def be_second(monkeypatch, coreset, of_first):
    """Have this process use a coreset as the second of two, of which the first has these arrays."""
    rows = coreset.likelihood.rows
    context = dataclasses.replace(rows.context, processes=Second(of_first))
    monkeypatch.setattr(rows, "context", context)
