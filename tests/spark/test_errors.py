from __future__ import annotations

import pytest

from gantrymq.spark import DataLoss, SparkError, Unreachable, reason
from gantrymq.spark.errors import own_error

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\n    ^^^\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[A] it failed\nat org.apache.spark", "[A] it failed"),
        (f"[A] in Python: {TRACE}gantrymq.spark.errors.DataLoss: gone\n SQLSTATE: 1\n\tat x", "gone"),
        (f"[STREAM_FAILED] because: {TRACE}ValueError: wrong\nsecond line\n SQLSTATE: 1", "ValueError: wrong"),
        (f"{TRACE}my.package.Wrong: why\n", "Wrong: why"),
        (
            f"[A] Job aborted: {TRACE}ModuleNotFoundError: No module named 'gantrymq'\n\tat x",
            "ModuleNotFoundError: No module named 'gantrymq' in a Python worker of Spark: install gantrymq[spark] for "
            "the interpreter that the machine's workers run, or set PYSPARK_PYTHON (with spark-submit: "
            "spark.pyspark.python) to one that "
            "has it",
        ),
        (f"{TRACE}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (f"{TRACE}OSError: first\n\nThe above exception was the direct cause:\n\n{TRACE}Wrong: then", "Wrong: then"),
        (
            f"{TRACE}OSError: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{TRACE}UnboundLocalError: then",
            "OSError: first",
        ),
        ("[A] no cause: Traceback (most recent call last):", "[A] no cause:"),
        ("", "Exception"),
    ],
)
def test_the_reason_is_the_relevant_line_of_a_spark_error(text: str, says: str) -> None:
    assert reason(Exception(text)) == says


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (f"[A] in Python: {TRACE}gantrymq.spark.errors.DataLoss: gone\n SQLSTATE: 1\n\tat x", DataLoss, "gone"),
        (f"{TRACE}gantrymq.spark.errors.Unreachable: h:1 is silent\n\tat x", Unreachable, "h:1 is silent"),
        (f"{TRACE}gantrymq.spark.errors.Refused: h:1 refused it: [16] no\n", SparkError, "h:1 refused it: [16] no"),
        (f"{TRACE}ValueError: wrong\n", SparkError, "ValueError: wrong"),
    ],
)
def test_an_error_of_a_task_keeps_its_kind(text: str, kind: type[SparkError], says: str) -> None:
    error = own_error(Exception(text))
    assert (type(error), str(error)) == (kind, says)
