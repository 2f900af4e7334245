"""Breaks by line, whatever the export knows of them."""

from __future__ import annotations

from pathlib import Path

from aot.breaks import Break
from aot.errors import ExportError
from aot.explain.breaks import breaks, excerpt
from tests.tiny import Eager


def test_an_error_that_names_its_line_is_a_break_there() -> None:
    error = ExportError("it branches", where="a/model.py:12 in forward: if x.sum() > 0:", fix="torch.where")
    (found,) = breaks(Eager(), error)
    assert (found.file, found.line, found.function) == ("a/model.py", 12, "forward")
    assert (found.what, found.code, found.fix) == ("it branches", "if x.sum() > 0:", "torch.where")


def test_one_that_names_something_else_keeps_it_in_words() -> None:
    (found,) = breaks(Eager(), ExportError("the export fixed Dim 'seq' at 4", where="input 'x', axis 1"))
    assert (found.file, found.line) == (None, None)
    assert found.what == "the export fixed Dim 'seq' at 4 (input 'x', axis 1)"


def test_a_place_that_the_words_hold_already_is_not_said_twice() -> None:
    (found,) = breaks(Eager(), ExportError("forward of M returns None, not a tensor", where="forward of M"))
    assert found.what == "forward of M returns None, not a tensor"


def test_breaks_that_are_known_as_data_are_passed_on() -> None:
    known = [Break("branch", "it branches", "m.py", 3), Break("branch", "again", "m.py", 9)]
    assert list(breaks(Eager(), ExportError("it branches", breaks=known))) == known


def test_code_is_shown_with_two_lines_around_it(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("".join(f"line {number}\n" for number in range(1, 8)))
    assert excerpt(Break("x", "y", str(file), 4)) == [(number, f"line {number}") for number in range(2, 7)]
    assert excerpt(Break("x", "y", str(file), 1)) == [(number, f"line {number}") for number in range(1, 4)]
    assert excerpt(Break("x", "y", str(tmp_path / "gone.py"), 4)) == []
    assert excerpt(Break("x", "y")) == []
