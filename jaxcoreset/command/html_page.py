"""The words, the style and the bricks of the HTML report."""

from collections.abc import Mapping, Sequence
from html import escape

MEANING = """<p><strong>What the estimate says.</strong> It compares two posteriors: that of the
weighted rows and that of all rows. Zero means that they are the same. If both are nearly normal
with equal spread, a symmetrised divergence of <var>J</var> nats means that no posterior mean is
off by more than √<var>J</var> of its standard deviation: 0.01 nats is a tenth of one, 0.0001 nats
a hundredth.</p>
<p><strong>What it does not say.</strong> It is an estimate: the variance of the difference of the
two log-likelihoods, over draws from an approximation of the posterior that the search did not see.
The error behind ± is that of the finite number of draws only. Where the approximation is poor, so
is the estimate; above 0.3 nats it is a lower bound. It holds for this model with these columns and
this prior, and for no other: with another column or another model, build another coreset. The rows
are no random sample either, so means or tables of them, weighted or not, do not describe the
data.</p>"""
TOO_LARGE = (
    "Here the estimate is above 0.3 nats: the posteriors differ by at least that, and may differ "
    "by far more. Build the coreset with more rows (a larger --size, or --tol)."
)
USE = """<p>Every row <var>i</var> counts as many times as its weight says: multiply its
log-likelihood by the weight, <var>w<sub>i</sub></var> log p(<var>y<sub>i</sub></var> |
<var>θ</var>), and leave the prior as it is. The weights are no whole numbers, and need not sum to
the number of rows exactly. A program that takes <em>frequency</em> or <em>likelihood</em> weights
does just that; <em>survey</em> and <em>inverse variance</em> weights are something else.</p>"""
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
.lead { font-size: 1.1rem; border-left: 4px solid #0072B2; padding-left: 0.9rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2rem 1.2rem; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.25rem 0.8rem; border-bottom: 1px solid #ddd; text-align: left;
  vertical-align: top; }
.numbers td:not(:first-child), .numbers th:not(:first-child) { text-align: right;
  font-variant-numeric: tabular-nums; }
.facts td:nth-child(2) { white-space: nowrap; } .facts td:nth-child(3) { color: #555; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: 0.9rem; }
pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
summary { cursor: pointer; padding: 0.3rem 0; }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(title: str, body: str) -> str:
    """A complete page that needs no other file.

    Args:
        title: plain text.
        body: HTML.
    """
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)


def definitions(facts: Mapping[str, str]) -> str:
    """Facts by name as a list; nothing if there are none."""
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()
    )
    return f"<dl>{items}</dl>" if items else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, head_row: bool = True) -> str:
    """A table of text, with a row of names above it or without."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    kind = "numbers" if head_row else "facts"
    above = f"<thead><tr>{top}</tr></thead>" if head_row else ""
    return f'<table class="{kind}">{above}<tbody>{body}</tbody></table>'
