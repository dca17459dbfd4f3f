"""The error that a weighting raises if it finds no π̂."""


class UnusableWeightingError(ValueError):
    """A weighting found no π̂: the posterior has no mode, or chains have not mixed.

    Args:
        message: what was found, what is expected, and what to do.
        reason: what was found, in a few words that continue "Laplace() cannot be used: ".

    Attributes:
        reason: see above.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason or message
