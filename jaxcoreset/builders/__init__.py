"""A NumPyro model and its data in, a coreset out: configured once, then run."""

from jaxcoreset.builders.builder import CoresetBuilder as CoresetBuilder
from jaxcoreset.builders.posterior_sampler import LaplaceSampler as LaplaceSampler
from jaxcoreset.builders.slice_sampler import SliceSampler as SliceSampler
