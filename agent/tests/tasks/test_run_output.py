"""The captured output in a result is text of a bounded size without the task's secrets."""

from mooring_agent.tasks.run_output import as_text
from tests.support.rows import every_row


@every_row(
    ("data", "limit", "text", "truncated"),
    [
        (b"", 10, "", False),
        ("zwölf".encode(), 6, "zwölf", False),
        ("zwölf".encode(), 3, "zw", True),  # never half a character
        (b"a\xffb", 5, "a\ufffdb", False),
        (b"\xff\xff", 5, "\ufffd", True),  # what stands for a bad byte is longer than it
        (b"a\x00b", 5, "a\ufffdb", False),
    ],
)
def test_output_is_text_of_at_most_so_many_bytes(data: bytes, limit: int, text: str, truncated: bool) -> None:
    assert as_text(data, False, limit) == (text, truncated)
    assert len(as_text(data, False, limit)[0].encode()) <= limit


def test_a_character_that_the_size_cut_is_left_out() -> None:
    assert as_text("zwölf".encode()[:3], True, 3) == ("zw", True)
    assert as_text("zwölf".encode()[:3], False, 5) == ("zw\ufffd", False)


def test_a_secret_of_the_task_is_masked_and_so_is_the_part_that_a_cut_left_of_it() -> None:
    secrets = (b"correct horse", b"correct horse battery")
    assert as_text(b"a correct horse battery b", False, 100, secrets) == ("a [secret] b", False)
    assert as_text(b"a correct horse b", False, 100, secrets) == ("a [secret] b", False)
    assert as_text(b"a correct h", True, 11, secrets) == ("a ", True)
    assert as_text(b"a correct h", False, 100, secrets) == ("a correct h", False)
    assert as_text(b"its 1", False, 100, (b"1", b"")) == ("its 1", False)
