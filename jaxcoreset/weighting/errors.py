"""The error of a weighting that found no π̂."""


class UnusableWeightingError(ValueError):
    """A weighting found no π̂: the posterior has no mode, or chains have not mixed."""
