"""The runner of the runbooks' pages.

What it takes as true, what it calls a lie, what it rewrites.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runbook_pages import Example, examples, execute, matches, rewritten

PAGE = """# A page

```console
$ printf 'one\\ntwo 17 s\\nthree\\nnext: ls\\n'
one
two [..] s
[...]
next: ls
$ cat absent
[exit 1]
```
Words, and a block that is not executed:
```toml
schema = 1
```
```console
$ echo talk >&2; echo told
told
```
"""


def outcomes(page: str, folder: Path) -> list[bool]:
    return [matches(example, execute(example, folder, os.environ)) for example in examples(page)]


def test_a_true_page_matches_and_stays_as_it_is(tmp_path: Path) -> None:
    assert outcomes(PAGE, tmp_path) == [True, True, True]
    really = [execute(example, tmp_path, os.environ) for example in examples(PAGE)]
    assert rewritten(PAGE, really) == PAGE


def test_commands_output_exit_code_and_next_are_read() -> None:
    first, second, third = examples(PAGE)
    assert first.expected == ("one", "two [..] s", "[...]", "next: ls")
    assert (first.following, second.following) == ("ls", "")
    assert (first.exit_code, second.exit_code, third.expected) == (0, 1, ("told",))


@pytest.mark.parametrize(
    ("command", "expected", "exit_code"),
    [
        ("echo one", ("two",), 0),  # another word
        ("echo one", (), 0),  # a line that the page does not show
        ("true", ("one",), 0),  # a line that is not printed
        (
            "printf 'one\\ntwo\\n'",
            ("one [..]", "two"),
            0,
        ),  # `[..]` does not swallow what it stands beside
        ("echo one", ("one",), 1),  # another exit code
        ("echo a.c", ("a[..]d",), 0),
        ("echo abc", ("a.c",), 0),  # a dot is a dot
        ("printf 'one\\ntwo\\n'", ("[..]",), 0),  # `[..]` ends at its line
        ("printf 'one\\ntwo\\n'", ("[...]", "three"), 0),
        ("echo one >&2", ("one",), 0),  # talk is not the result
    ],
)
def test_a_page_that_lies_is_found(
    command: str, expected: tuple[str, ...], exit_code: int, tmp_path: Path
) -> None:
    example = Example(command=command, expected=expected, exit_code=exit_code)
    assert not matches(example, execute(example, tmp_path, os.environ))


def test_talk_is_compared_where_the_command_says_so(tmp_path: Path) -> None:
    apart = Example(command="cat absent", expected=("cat: [..]",), exit_code=1)
    merged = Example(command="cat absent 2>&1", expected=("cat: [..]",), exit_code=1)
    assert [matches(item, execute(item, tmp_path, os.environ)) for item in (apart, merged)] == [
        False,
        True,
    ]


def test_a_rewritten_page_is_true_and_keeps_elisions_that_still_fit(tmp_path: Path) -> None:
    wrong = PAGE.replace("one\ntwo [..]", "ONE\ntwo [..]").replace("[...]\n", "")
    wrong = wrong.replace("echo told\ntold", "echo told\nlied")
    assert outcomes(wrong, tmp_path) == [False, True, False]
    mended = rewritten(
        wrong, [execute(example, tmp_path, os.environ) for example in examples(wrong)]
    )
    assert outcomes(mended, tmp_path) == [True, True, True]
    assert mended == PAGE.replace("[...]\n", "three\n")


def test_files_made_by_one_command_are_there_for_the_next(tmp_path: Path) -> None:
    page = "```console\n$ echo kept > note\n$ cat note\nkept\n```\n"
    assert outcomes(page, tmp_path) == [True, True]
