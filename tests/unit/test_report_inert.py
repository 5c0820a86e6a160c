"""Nothing that comes out of a run can act in the report.

No markup, link, hidden character or network.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from dossiers import HOSTILE, audit, empty, spike
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.nouns.incident import Dossier
from spiketriage.report import build, markdown, words, write

ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "p",
        "span",
        "b",
        "header",
        "div",
        "h1",
        "h2",
    ),
    *(
        "dl",
        "dt",
        "dd",
        "ul",
        "li",
        "code",
        "nav",
        "a",
        "section",
        "figure",
        "figcaption",
        "svg",
        "rect",
        "text",
    ),
    *(
        "line",
        "path",
        "circle",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "footer",
    ),
}


class Seen(HTMLParser):
    """Collects tags and attributes as a browser would find them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data


def poisoned(text: str) -> Dossier:
    """Dossier in which every free text is `text`."""
    base = spike()
    cause = replace(base.verdict.causes[0], name=text, supporting=(text,))
    return replace(
        base,
        incident=text,
        facts={text: text, "run_id": text},
        anchors=replace(
            base.anchors, reason=text, known_good=f"{text}-000180", refused={text: text}
        ),
        artifacts=tuple(replace(a, path=text, note=text) for a in base.artifacts),
        findings=tuple(
            replace(
                f,
                name=text,
                summary=text,
                seen=text,
                expected=text,
                where=replace(f.where, key=text),
            )
            for f in base.findings
        ),
        trials=tuple(
            replace(t, purpose=text, summary=text, factors={text: text}) for t in base.trials
        ),
        steps=tuple(replace(p, alarm=text if p.alarm else "") for p in base.steps),
        verdict=replace(
            base.verdict,
            cause=text,
            explanation=text,
            repair=text,
            not_tested=(text,),
            causes=(cause,),
        ),
        journal=tuple(
            replace(row, argv=f"spiketriage freeze {text}", outcome=text) for row in base.journal
        ),
    )


def browse(dossier: Dossier) -> Seen:
    seen = Seen()
    seen.feed(write.render(dossier, build.build(dossier))["report.html"].decode())
    seen.close()
    return seen


def assert_inert(seen: Seen) -> None:
    assert seen.tags <= ALLOWED | {"title"}
    for name, value in seen.attributes:
        assert not name.startswith("on")
        assert name not in {"src", "srcset", "style", "data", "action", "xlink:href"}
        assert name != "href" or re.fullmatch(r"#[a-z-]+", value)


def test_hostile_text_is_text_in_html():
    seen = browse(poisoned(HOSTILE))
    assert_inert(seen)
    assert '<script>alert("x")</script>' in seen.text
    assert "\\u202eesrever\\x1b[31m" in seen.text


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_inert_in_html(text):
    assert_inert(
        browse(replace(audit(), incident=text, facts={"run_id": text}, verdict=_explained(text)))
    )


def _explained(text: str):
    return replace(audit().verdict, explanation=text, repair=text, not_tested=(text,))


def test_no_resource_is_named_and_the_policy_forbids_every_network():
    for dossier in (spike(), audit(), empty()):
        html = write.render(replace(dossier), build.build(dossier))["report.html"].decode()
        assert not re.search(
            r"""(?:src|href|url|import|xmlns)\s*[=(:]?\s*["']?\s*(?:https?:)?//""", html, re.I
        )
        policy = (
            re.search(r'Content-Security-Policy" content="([^"]+)"', html)
            .group(1)
            .replace("&#39;", "'")
        )
        style = re.search(r"<style>(.*?)</style>", html, re.S).group(1)
        digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.split("; ") == [
            *(
                "default-src 'none'",
                f"style-src 'sha256-{digest}'",
                "base-uri 'none'",
                "form-action 'none'",
            ),
        ]
        assert "<script" not in html


def test_hostile_text_is_text_in_markdown():
    lines = (
        write.render(poisoned(HOSTILE), build.build(poisoned(HOSTILE)))["report.md"]
        .decode()
        .splitlines()
    )
    width = 0
    for line in lines:
        bare = _without_code(line)
        assert not re.search(r"<(?!/?(?:details|summary)>)", bare)
        assert "://" not in bare
        cells = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))
        if re.fullmatch(r"\|(?:-+:?\|)+", line):
            width = cells
        elif line.startswith("|") and width:
            assert cells == width
        else:
            width = 0


def _without_code(line: str) -> str:
    """Line without its code spans, by the rule of CommonMark.

    A run of backticks ends at an equal run.
    """
    out, rest = "", line
    while opening := re.search(r"(?<![\\`])`+", rest):
        closing = re.search(rf"(?<!`){opening.group()}(?!`)", rest[opening.end() :])
        out += rest[: opening.start()]
        assert closing, f"a code span is not closed: {line}"
        rest = rest[opening.end() + closing.end() :]
    return out + rest


@given(text=st.text(alphabet="`a| \\", max_size=12))
def test_a_code_span_holds_any_backticks_and_pipes(text):
    span = markdown.code(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", span)
    if "\\|" not in text:
        assert _without_code(f"x {span} y") == "x  y"


@given(text=st.text(alphabet="\\|*_`[]<>&~#$@ab\n", max_size=20))
def test_markdown_text_gives_no_live_markup(text):
    made = markdown.text(words.plain(text))
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]|~]", made.replace("\\\\", ""))
    assert "<" not in made
    assert "\n" not in made


@pytest.mark.parametrize(
    ("hidden", "written"),
    [
        ("\x00", r"\x00"),
        ("\x1b", r"\x1b"),
        ("\u202e", r"\u202e"),
        ("\u2066", r"\u2066"),
        ("\u200b", r"\u200b"),
        ("\ud800", r"\ud800"),
        ("\u2028", r"\u2028"),
    ],
)
def test_hidden_characters_are_written_out(hidden, written):
    assert words.plain(f"a{hidden}b") == f"a{written}b"


def test_an_svg_file_is_well_formed_and_inert():
    for name, data in write.render(poisoned(HOSTILE), build.build(poisoned(HOSTILE))).items():
        if name.endswith(".svg"):
            tags = {
                element.tag.rpartition("}")[2] for element in ElementTree.fromstring(data).iter()
            }
            assert tags <= {"svg", "style", "rect", "text", "line", "path", "circle", "title"}
