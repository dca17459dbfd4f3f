"""`python -m jaxcoreset` is the command `jaxcoreset`."""

from jaxcoreset.command.main import main

if __name__ == "__main__":
    raise SystemExit(main())
