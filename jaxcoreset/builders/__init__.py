"""A NumPyro model and its data in, a coreset out: configured once, then run."""

from jaxcoreset.builders.builder import CoresetBuilder as CoresetBuilder
