"""Names that people know from other task libraries, and what duly has in their place."""

from collections.abc import Iterable, Mapping

from duly.core.suggestions import nearest

OPTIONS: Mapping[str, str] = {
    "autoretry_for": "retries=Retry(…, on=(…,))",
    "countdown": "delay= with seconds or a timedelta",
    "default_retry_delay": "retries=Retry(…, base=…)",
    "eta": "at= with a datetime",
    "exchange": "queue=",
    "max_retries": "retries=",
    "retry_backoff": "retries=Retry(…)",
    "routing_key": "queue=",
    "soft_time_limit": "timeout=",
    "task_id": "key=",
    "throws": "retries=Retry(…, give_up_on=(…,))",
    "time_limit": "timeout=",
}
"""By the option of another library: the option of duly."""

METHODS: Mapping[str, str] = {
    "apply_async": ".using(…).enqueue(…)",
    "apply": "the task itself, which runs the plain function here and now",
    "defer": ".enqueue(…)",
    "defer_async": "await .aenqueue(…)",
    "delay": ".enqueue(…)",
    "enqueue_at": ".using(at=…).enqueue(…)",
    "enqueue_in": ".using(delay=…).enqueue(…)",
    "kiq": "await .aenqueue(…)",
    "s": ".call(…) with app.enqueue_many, or gather(…) inside a task",
    "send": ".enqueue(…)",
    "send_with_options": ".using(…).enqueue(…)",
    "signature": ".call(…) with app.enqueue_many, or gather(…) inside a task",
}
"""By the method of another library's task: the call of duly."""


def unknown_option(name: str, known: Iterable[str]) -> str:
    """Return what to tell the caller of an option that does not exist."""
    names = list(known)
    message = f"there is no option {name!r}"
    if name in OPTIONS:
        return f"{message}; use {OPTIONS[name]}"
    meant = nearest(name, names)
    if meant is not None:
        message += f"; did you mean {meant}=?"
    return f"{message}; the options are {', '.join(names)}"


def no_attribute(name: str) -> str:
    """Return what to tell the caller of an attribute that a task does not have."""
    if name in METHODS:
        return f"a task of duly has no {name!r}; use {METHODS[name]}"
    return f"'Task' object has no attribute {name!r}"
