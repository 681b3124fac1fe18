"""Old names and phrases that plain terms replaced do not come back, and the glossary is well formed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "benchmarks",
    "docs",
    "examples",
    "gantrymq",
    "packaging",
    "pyspark_gantrymq",
    "tests",
)
OLD_NAMES = (
    r"\btold\.py\b",
    r"\btell_[a-z]+",
    r"\.told\(",
    r"\blook_at\b",
    r"\bPatience\b",
    r"\bRoomAhead\b",
    r"\broomahead\b",
    r"\bNotAtHand\b",
    r"\bmistrust",
    r"\bopened_at\b",
    r"\bkeep_aside\b",
    r"\bForgivingGate\b",
    r"\bgave_up\b",
    r"\bhopeless\b",
    r"\bby_plugin\b",
    r"\bculprit\b",
    r"\bPullDesk\b",
    r"\bPullTerms\b",
    r"\bMeans\b",
    r"\b_refuse_strangers\b",
    r"\bhalfwalk\b",
    r"\bstatewalk\b",
    r"\bhiding\b",
    r"\bWhereabouts\b",
    r"\bSaidOffsets\b",
    r"\bStranger\b",
    r"\bRivals\b",
    r"\b[Aa]rrivals\b",
    r"\b[Dd]epartures\b",
    r"\btrust\.py\b",
    r"\bgo_by\b",
    r"\bWish\b",
    r"\bwishes\b",
)
OLD_PHRASES = (
    r"\b(?:slow|plain|compiled|whole|privileged) road\b",
    r"\bwith the eyes of\b",
    r"\bThe first word counts\b",
    r"\bWhat was answered so\b",
    r"\bOf what time all is there\b",
    r"\bnobody does it for you\b",
    r"\bhas not asked to be told\b",
    r"\bis told from\b",
    r"\b[Ww]ho (?:does|can connect|said|says|asks|connects)\b",
    r"\bvouch",
    r"\bloudly\b",
    r"\bwho goes beyond\b",
    r"\bwhat the disk has of\b",
    r"\bfurther behind than so\b",
    r"\bWhat is promised\b",
    r"\b[Ww]hat is told of\b",
    r"\b[Hh]ow far (?:it|they|both) can be (?:trusted|relied upon)\b",
    r"\bstop(?:ped)? in order\b",
    r"\bOf several lines\b",
    r"\bhears? from nobody\b",
    r"\bcalls? (?:it|the lost pages) clean\b",
    r"\bwhat there is\b",
    r"(?<!_)(?:[Bb]ehaviour|[Aa]cknowledgement|[Cc]olour|[Ll]icence|[Ss]erialise)",  # American spelling
)
RIDDLE_IN_A_NAME = (
    r"^(?:it|they|much|one_that|who|what|whoever|whatever|whichever|of|so_many)_|_(?:for|to|of|those)_who_"
    r"|(?:^|_)(?:put_aside|set_aside|given_back|gives?_back|loudly|vouch\w*|farewells?|wish|wishes|strangers?|told|tells?"
    r"|road|alike|anew|asked_about|weather)(?:_|$)"
)
"""Pronouns and relative clauses in place of a subject, and words of our own where a standard term exists."""


@cache
def pages() -> dict[Path, str]:
    """The documentation and the code outside of kernel and plugins."""
    found: list[Path] = []
    for place in PLACES:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(filter(is_checked, path.rglob("*")))
    return {path: path.read_text() for path in found}


def is_checked(path: Path) -> bool:
    """Whether it is a page or a source; dated results keep their terms, and this file has the old ones."""
    return (
        path.suffix in {".py", ".md"}
        and not path.name.startswith("20")
        and path != Path(__file__).resolve()
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


@cache
def code() -> str:
    """The kernel and the plugins, whose modules and classes are renamed with the package layout."""
    paths = [path for folder in ("kernel", "plugins") for path in (ROOT / folder).rglob("*.p*")]
    return "\n".join(f"{path.name}\n{path.read_text()}" for path in paths if path.suffix in {".py", ".pyx", ".pxi"})


def is_name_in_code(text: str, line: str) -> bool:
    """Whether ``line`` cites ``text`` as code, and the kernel or a plugin has it still."""
    return any(text in span for span in re.findall(r"`([^`]+)`", line)) and text in code()


@pytest.mark.slow
def test_replaced_terms_are_not_used() -> None:
    assert len(pages()) > 200
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for old in (*OLD_NAMES, *OLD_PHRASES)
        for path, text in pages().items()
        if re.search(old, text)
        for number, line in enumerate(text.splitlines(), 1)
        for match in re.finditer(old, line)
        if not (path.name == "glossary.md" or (path.suffix == ".md" and is_name_in_code(match[0], line)))
    ]
    assert found == []


def test_replaced_phrases_do_not_occur_in_kernel_and_plugins() -> None:
    assert [found for old in OLD_PHRASES for found in re.findall(old, code())] == []


def test_replaced_identifiers_do_not_occur() -> None:
    assert [found for old in OLD_NAMES for found in re.findall(old, code())] == []


def test_the_glossary_is_sorted_and_defines_each_term_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^\| (?!term |---)([^|]+?) \|", text, re.MULTILINE)
    assert len(terms) > 60
    keys = [re.sub(r"[^a-z ]", "", term.lower()) for term in terms]
    assert keys == sorted(set(keys))


def test_names_of_tests_have_a_subject_and_standard_terms() -> None:
    names = [
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 3000
    assert [(file, name) for file, name in names if re.search(RIDDLE_IN_A_NAME, name)] == []
