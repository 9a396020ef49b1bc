"""README's examples, as the clean root runs them (tests/packaging/clean_root.py)."""

from __future__ import annotations

from pathlib import Path

from tests.packaging.clean_root import SAID, examples, frameworks, unsaid

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_example_of_the_readme_says_what_it_prints() -> None:
    found = examples(README.read_text())
    assert [language for language, _ in found] == ["python", "python", "python", ""]
    assert all(SAID.findall(block) for _, block in found)
    assert [frameworks(block) for _, block in found] == [["tensorflow"], ["torch"], [], []]


def test_what_is_not_printed_in_its_order_is_found() -> None:
    block = "print(a)  # 1\nx = 2  # no output\nprint(f(b))  # (2, 4)\n"
    assert unsaid(block, "a warning\n1\n(2, 4)\n") == []
    assert unsaid(block, "(2, 4)\n1\n") == ["(2, 4)"]
    assert unsaid("python -c 'print(1)'  # 1\n", "2\n") == ["1"]
