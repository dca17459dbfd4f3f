"""TBD"""

import argparse

import jax

from benchmarks.posteriors.cases import CASES


def main():
    p = argparse.ArgumentParser()
    p.add_argument("part")
    p.add_argument("names", nargs="*")
    p.add_argument("--draws", type=int, default=1000)
    p.add_argument("--warmup", type=int, default=400)
    o = p.parse_args()
    jax.config.update("jax_enable_x64", True)
    import time
    import traceback

    from benchmarks.posteriors import truth

    for n in o.names or CASES:
        b = time.time()
        try:
            truth.measure(CASES[n], o.draws, o.warmup)
        except Exception:
            traceback.print_exc()
        print(n, "total", round(time.time() - b), flush=True)


main()
