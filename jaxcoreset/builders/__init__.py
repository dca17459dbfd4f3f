"""Builders, which make a coreset of a NumPyro model's data: configure one, then run it."""

from jaxcoreset.builders.builder import CoresetBuilder as CoresetBuilder
from jaxcoreset.builders.posterior_sampler import LaplaceSampler as LaplaceSampler
from jaxcoreset.builders.slice_sampler import SliceSampler as SliceSampler
