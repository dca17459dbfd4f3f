"""`python -m jaxcoreset` is the command `jaxcoreset`."""

from jaxcoreset.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
