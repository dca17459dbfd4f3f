"""Iterative hard thresholding: deterministic, dense, and with stochastic gradients."""
