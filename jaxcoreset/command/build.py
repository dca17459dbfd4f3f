"""The command ``jaxcoreset build``: from a file of rows to a file of weighted rows."""

import argparse
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxcoreset.command.inputs import Inputs, formula_inputs, model_inputs, regression_inputs
from jaxcoreset.command.options import (
    add_common_options,
    column_names,
    positive_integer,
    positive_number,
)
from jaxcoreset.command.output import write_csv, write_parquet
from jaxcoreset.command.problems import Problems
from jaxcoreset.command.regressions import PRIOR_SCALE, REGRESSIONS
from jaxcoreset.command.tables import SUFFIXES, Table, TableError, read_table
from jaxcoreset.data.messages import require
from jaxcoreset.data.utils import write_whole

_OUTPUTS = (".csv", ".parquet", ".npz")
_TOL = 0.01
_MAX_SIZE = 2000

DESCRIPTION = f"""\
Choose a few rows of a table and give each a weight, so that a Bayesian model has nearly the same
posterior on the weighted rows as on all rows.

FILE is a table: CSV or TSV with a header, Parquet, or NPZ, whose arrays are the columns (an array X
with several columns becomes X[0], X[1], ...). There are two ways to say what the model is:

  --likelihood NAME   a regression of --response on all other columns, or on --columns:
                      {", ".join(REGRESSIONS)}.
                      Numeric columns are standardised by the mean and standard deviation of all
                      rows; so is the response of normal and student_t. True/false columns become
                      1/0. A text column is an error unless --categorical names it: then it
                      becomes one 0/1 column for each value but the first. There is always an
                      intercept. Priors: coefficients Normal(0, s), intercept Normal(0, 4 s),
                      where s is --prior-scale.
  --model WHERE       a NumPyro model of your own, module:function or file.py:function. Its
                      arguments are filled by name: an argument takes the column of that name, or
                      the matrix of the columns NAME[0], NAME[1], ...; an argument y takes
                      --response; an argument x or X takes the matrix of --columns, or of all
                      remaining columns. Any other argument needs a default. Nothing is
                      standardised; columns named by --categorical become integers from 0, and
                      other true/false columns are boolean, or 1/0 within a matrix.
"""
EPILOG = """\
The output has one line for each row of the coreset: "row", its number in FILE counted from 0,
"weight", and, in CSV and Parquet, the unchanged columns of FILE. From a text file to Parquet, a
column that the model does not use is text if its numbers are written in another way, as 007 and
1.50 are. NPZ holds the coreset itself, for jaxcoreset.load. With --proxy auto there is a second
file beside CSV and Parquet, NAME.proxy.json, and the rows cannot be used without it; the programs
in the report read both.

examples:
  jaxcoreset build flights.csv --likelihood logistic --response late --out coreset.csv
  jaxcoreset build visits.parquet --likelihood poisson --response visits --columns age,income \\
      --tol 0.001 --out coreset.parquet --report report.html
  jaxcoreset build flights.csv --likelihood logistic --formula 'late ~ distance + C(carrier)' \\
      --drop-missing --out coreset.csv
  jaxcoreset build schools.csv --model models.py:schools --categorical school --size 200 \\
      --out coreset.npz
"""


def add_build_parser(commands: Any) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "build",
        help="choose weighted rows of a CSV, Parquet or NPZ file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("file", metavar="FILE", type=Path, help=f"the table: {', '.join(SUFFIXES)}")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--likelihood", choices=list(REGRESSIONS), help="a named regression")
    model.add_argument("--model", metavar="WHERE", help="module:function or file.py:function")
    parser.add_argument("--response", metavar="COLUMN", help="the column to explain")
    parser.add_argument(
        "--columns",
        metavar="A,B,C",
        type=column_names,
        help="the explanatory columns (all others); quote a name that contains a comma",
    )
    parser.add_argument(
        "--categorical",
        metavar="A,B",
        type=column_names,
        default=[],
        help="the columns that hold categories",
    )
    parser.add_argument(
        "--formula",
        metavar="FORMULA",
        help="with --likelihood, the response and its terms, such as 'late ~ distance + "
        "C(carrier)', in place of --response, --columns and --categorical",
    )
    parser.add_argument(
        "--positive",
        metavar="VALUE",
        help="with --likelihood logistic, the value of the response that counts as 1, such as yes",
    )
    parser.add_argument(
        "--drop-missing",
        action="store_true",
        help="leave out rows with a missing value in a column that the model uses",
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--size", type=positive_integer, help="maximum number of rows")
    how_many.add_argument(
        "--tol",
        type=positive_number,
        help=f"use the fewest rows that keep the estimated KL divergence below TOL nats ({_TOL})",
    )
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        type=positive_integer,
        help=f"with --tol, the maximum number of rows ({_MAX_SIZE})",
    )
    parser.add_argument(
        "--out",
        metavar="PATH",
        type=Path,
        required=True,
        help=f"the file to write: {', '.join(_OUTPUTS)}",
    )
    parser.add_argument(
        "--proxy",
        choices=["none", "auto"],
        default="none",
        help="auto: a second-order expansion may stand for all rows, and the coreset's rows only "
        "correct it, if that takes fewer rows or has a smaller error; CSV and Parquet then come "
        "with a file NAME.proxy.json (none)",
    )
    parser.add_argument("--report", metavar="PATH", type=Path, help="write an HTML report as well")
    parser.add_argument(
        "--prior-scale",
        metavar="S",
        type=positive_number,
        help=f"with --likelihood, prior standard deviation of the coefficients ({PRIOR_SCALE})",
    )
    parser.add_argument(
        "--no-standardise",
        "--no-standardize",
        action="store_true",
        help="with --likelihood, use the columns as they are",
    )
    parser.add_argument(
        "--weight-column", metavar="NAME", default="weight", help="column of weights (weight)"
    )
    parser.add_argument(
        "--row-column", metavar="NAME", default="row", help="column of row numbers (row)"
    )
    parser.add_argument(
        "--keep-formulas",
        action="store_true",
        help="write text such as =1+1 to a CSV file as it is; otherwise an apostrophe goes before "
        "it, so that no spreadsheet runs it",
    )
    add_common_options(parser)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Build and write; an exception of the user's model is reported as a user's error."""
    _check_options(options)
    try:
        _build(options, arguments)
    except (ValueError, ModuleNotFoundError, OSError, MemoryError):
        raise
    except Exception as error:
        if options.model is None:
            raise
        raise TableError(_model_error(options.model, error)) from error


def _model_error(spec: str, error: Exception) -> str:
    """What a user's model raised, and where in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    stem = Path(spec.rpartition(":")[0]).stem.rpartition(".")[2]
    places = [frame for frame in frames if Path(frame.filename).stem == stem]
    place = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    message = str(error).strip().partition("\n")[0]
    return (
        f"the model {spec} failed with {type(error).__name__}{place}: {message} (--debug shows "
        "the traceback.)"
    )


def _check_options(options: argparse.Namespace) -> None:
    """Check that the options fit together, before any work is done.

    Raises:
        TableError: if they do not; it names all mistakes.
        ModuleNotFoundError: if a package that the output needs is missing.
    """
    problems = Problems()
    if options.likelihood is not None and options.response is None and options.formula is None:
        problems.append(
            f"--response is missing: --likelihood {options.likelihood} explains one column by the "
            "other columns; expected --response COLUMN, or --formula."
        )
    if options.formula is not None:
        for option in ("response", "columns", "categorical"):
            if getattr(options, option):
                problems.append(f"--{option} does not go with --formula, which already says it.")
    if options.size is not None and options.max_size is not None:
        problems.append("--max-size goes with --tol; --size is a maximum itself.")
    if options.positive is not None and options.likelihood != "logistic":
        problems.append("--positive goes with --likelihood logistic.")
    if options.model is not None:
        for option in ("prior_scale", "no_standardise", "formula"):
            if getattr(options, option):
                problems.append(
                    f"--{option.replace('_', '-')} goes with --likelihood; with --model, the model "
                    "defines its own priors and scales."
                )
    suffix = options.out.suffix.lower()
    if suffix not in _OUTPUTS:
        problems.append(f"--out is {options.out}; expected a name in {', '.join(_OUTPUTS)}.")
    for path in (options.out, options.report):
        if path is None:
            continue
        if not path.parent.is_dir():
            problems.append(f"{path} cannot be written: there is no directory {path.parent}.")
        if path.is_dir():
            problems.append(f"{path} cannot be written: it is a directory.")
        if path.resolve() == options.file.resolve():
            problems.append(f"{path} is the input file; expected another name to write to.")
    if options.report is not None:
        require("matplotlib")
        require("jinja2")
        if options.report.resolve() == options.out.resolve():
            problems.append(f"--out and --report are both {options.out}; expected two names.")
    if suffix == ".parquet":
        require("pyarrow")
    if suffix != ".npz" and options.weight_column == options.row_column:
        problems.append(
            f"--weight-column and --row-column are both {options.row_column!r}; expected two names."
        )
    problems.refuse()


def _build(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    def say(text: str) -> None:
        if not options.no_progress:
            print(text, file=sys.stderr, flush=True)

    say(f"Reading {options.file} ...")
    table = read_table(options.file, _categories(options))
    say(f"{len(table):,} rows, {len(table.columns):,} columns.")
    suffix = options.out.suffix.lower()
    for name in (options.weight_column, options.row_column):
        if suffix != ".npz" and name in table.columns:
            raise TableError(
                f"{table.path} already has a column {name!r}, which the output adds; choose "
                "another name with --weight-column or --row-column."
            )
    inputs = _inputs(options, table)
    table = inputs.table
    for note in inputs.notes:  # such as the number of rows that are left out
        print(note, file=sys.stderr, flush=True)
    say(f"Building a coreset for {inputs.title} ...")

    import jax

    from jaxcoreset.builders.builder import CoresetBuilder
    from jaxcoreset.builders.settings import Tolerance

    tol = None if options.size is not None else (options.tol or _TOL)
    builder = CoresetBuilder(
        inputs.model,
        size=options.size,
        tol=None if tol is None else Tolerance(tol, max_size=options.max_size or _MAX_SIZE),
        data_axes=inputs.data_axes,
        progress_bar=not options.no_progress,
        proxy=None if options.proxy == "none" else options.proxy,
    )
    coreset = builder.run(jax.random.key(options.seed), **inputs.arguments)
    proxy = None if coreset.proxy is None else options.out.with_suffix(".proxy.json")
    names: dict[str, Any] = {"weight": options.weight_column, "row": options.row_column}
    names |= {"proxy": proxy, "numbers": table.rows}
    if suffix == ".npz":
        written = coreset.save(options.out)
    elif suffix == ".csv":
        numeric = [name for name in inputs.used if name not in (*inputs.levels, *inputs.kinds)]
        kept = options.keep_formulas
        written = write_csv(coreset, options.out, table, numeric, keep_formulas=kept, **names)
    else:
        written = write_parquet(coreset, options.out, table, inputs.used, **names)
    print(coreset.report)
    print(f"Wrote {written}: {len(coreset):,} rows with their weights.")
    if proxy is not None and suffix != ".npz":
        print(f"Wrote {proxy}: the expansion of all rows, which the rows of the coreset correct.")
    if options.report is not None:
        _report(options, arguments, table, inputs, coreset, tol)
        print(f"Wrote {options.report}.")


def _categories(options: argparse.Namespace) -> list[str]:
    """The columns that hold categories, by the options."""
    found = [*(options.categorical or ())]
    if options.formula is not None:
        found += [name.strip("` ") for name in re.findall(r"\bC\(([^,)]+)", options.formula)]
    if options.likelihood == "categorical" and options.response is not None:
        found.append(options.response)
    return found


def _inputs(options: argparse.Namespace, table: Table) -> Inputs:
    dropping = options.drop_missing
    if options.model is not None:
        given = options.response, options.columns, options.categorical
        return model_inputs(table, options.model, *given, drop_missing=dropping)
    settings = {
        "scale_columns": not options.no_standardise,
        "prior_scale": options.prior_scale or PRIOR_SCALE,
        "positive": options.positive,
        "drop_missing": dropping,
    }
    if options.formula is not None:
        return formula_inputs(table, options.likelihood, options.formula, **settings)
    given = options.likelihood, options.response, options.columns, options.categorical
    return regression_inputs(table, *given, **settings)


def _report(
    options: argparse.Namespace,
    arguments: Sequence[str],
    table: Table,
    inputs: Inputs,
    coreset: Any,
    tol: float | None,
) -> None:
    from importlib.metadata import version

    from jaxcoreset.command.export import loading_program, programs
    from jaxcoreset.command.html import compare_laplace, html_report

    facts = {
        "file": f"{options.file.name}, {len(table):,} rows",
        "model": inputs.title + (f" of {inputs.response}" if inputs.likelihood else ""),
        "columns": ", ".join(inputs.columns),
        "coreset": options.out.name,
        "command": "jaxcoreset " + shlex.join(arguments),
        "made by": f"jaxcoreset {version('jaxcoreset')}",
    }
    notes = list(inputs.notes)
    if inputs.likelihood:
        scale = inputs.arguments["prior_scale"]
        notes.append(
            f"Priors: coefficients Normal(0, {scale:g}), intercept Normal(0, {4 * scale:g})"
            + (", on the standardised columns." if inputs.scaling else ".")
        )
    for name, levels in inputs.levels.items():
        notes.append(f"Categories of {name}, compared with the first: {_names(levels)}.")
    if inputs.outcomes:
        notes.append(f"The response is 1 for {inputs.outcomes[1]}, and 0 for {inputs.outcomes[0]}.")
    if table.rows is not None and options.out.suffix.lower() == ".npz":
        notes.append("Rows are numbered among those that were not left out.")
    if inputs.classes:
        notes.append(f"Classes, compared with the first: {_names(inputs.classes)}.")
    examples = {}
    if options.out.suffix.lower() == ".npz":
        examples = loading_program(options.out, trust=not inputs.likelihood)
    elif inputs.formula is not None:
        notes.append(
            f"The formula {inputs.formula} made the columns of the regression from those of the "
            "file. There are no programs for other tools, since these would have to evaluate the "
            "formula."
        )
    elif inputs.likelihood:
        is_escaped = options.out.suffix.lower() == ".csv" and not options.keep_formulas
        proxy = None if coreset.proxy is None else options.out.with_suffix(".proxy.json")
        examples = programs(
            inputs, options.out, options.weight_column, is_escaped=is_escaped, proxy=proxy
        )
    text = html_report(
        coreset,
        title=f"Coreset of {options.file.name}",
        facts=facts,
        notes=notes,
        tol=tol,
        comparison=compare_laplace(coreset, inputs.parameter_name),
        scaling=inputs.scaling,
        programs=examples,
    )
    write_whole(options.report, lambda file: file.write(text.encode()))


def _names(levels: Sequence[str]) -> str:
    """Names in a sentence, in quotes where a comma is part of one."""
    quote = any("," in level for level in levels)
    return ", ".join(repr(level) if quote else level for level in levels)
