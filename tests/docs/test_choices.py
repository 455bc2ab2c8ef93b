"""The table of measured choices is what the kept answers say."""

import undrift as ud
from benchmarks.choices import BEGIN, CHOICES, FEDERATIONS, PAGE, with_table


def test_the_page_says_what_the_answers_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text) == text, "python -m benchmarks.choices table"
    assert all(f"(choices/{path.name})" in text.split(BEGIN)[1] for path in CHOICES.glob("*.json"))


def test_every_kept_answer_is_of_a_known_federation_and_can_be_read() -> None:
    kept = {path.stem for path in CHOICES.glob("*.json")}
    assert kept <= {*FEDERATIONS} and len(kept) >= 3
    for name in kept:
        choice = ud.load_choice(CHOICES / f"{name}.json")
        assert f"Take {choice.best.spec}." in str(choice)
        assert choice.best.noise is not False  # the best, or within noise of it
