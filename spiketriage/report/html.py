"""The report as one HTML file that opens offline: no script, no network, figures inline.

Foreign text goes through Jinja2's autoescape; it never trusts any markup but `plot.draw`'s and our
styles.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from importlib import resources

from spiketriage.report.model import Figure, Report


def render(report: Report) -> str:
    """Whole report as one document."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = "\n" + _own("plot.css") + _own("report.css")
    return environment.from_string(_own("report.html.j2")).render(
        report=report, css=css, policy=_policy(css)
    )


def standalone(figure: Figure) -> str:
    """Figure as an SVG file of its own, with the same looks."""
    size = f'width="{figure.width}" height="{figure.height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {figure.width} '
        f'{figure.height}" '
        f'{size} role="img" aria-label="{escape(figure.description)}">\n'
        f"<style>\n{_own('plot.css')}</style>\n"
        f'<rect class="paper" {size}/>\n{figure.body}\n</svg>\n'
    )


def _policy(css: str) -> str:
    """Content policy that allows this one style sheet, by its digest, and nothing else at all."""
    digest = b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _own(name: str) -> str:
    return resources.files("spiketriage.report").joinpath(name).read_text("utf-8")
