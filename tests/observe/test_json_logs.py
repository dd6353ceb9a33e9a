"""Log lines in JSON."""

import json
import logging

from duly.observe.json_logs import JsonFormatter


def line_of(message, *args, exc_info=None):
    record = logging.LogRecord("duly", logging.ERROR, __file__, 1, message, args, exc_info)
    return JsonFormatter().format(record)


def test_a_log_line_is_one_json_object_for_any_message():
    hostile = "a\nERROR forged\r\x1b[31m\u202egnp.exe"

    line = line_of("run %s failed", hostile)

    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["level"], found["logger"]) == ("error", "duly")
    assert found["message"] == f"run {hostile} failed"
    assert found["at"].endswith("Z")


def test_a_log_line_contains_the_traceback_of_an_exception():
    try:
        int("boom")
    except ValueError as error:
        line = line_of("it failed", exc_info=(type(error), error, error.__traceback__))

    assert "ValueError: invalid literal" in json.loads(line)["traceback"]
