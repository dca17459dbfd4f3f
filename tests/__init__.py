"""The tests, and how their programs are compiled."""

# XLA's older way of making kernels for a CPU: its newer one takes over 10 ms for each, however
# small. A version of XLA that does not know the option passes over it.
OLDER_EMITTERS = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
