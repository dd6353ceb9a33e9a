"""What `tests.py` of django-tasks-db needs of its tasks, found from how it uses each name.

Its source distribution has no such module. Texts are those that its assertions look for.
"""

from django.tasks import task


def _accept_all(*args, **kwargs):
    """Take anything and do nothing."""


def _named(name, function, **options):
    """Make a function a task of this module under a name."""
    function.__name__ = function.__qualname__ = name
    return task(**options)(function)


noop_task = _named("noop_task", _accept_all)
calculate_meaning_of_life = _named("calculate_meaning_of_life", lambda: 42)
complex_return_value = _named("complex_return_value", lambda: {1, 2})
get_task_id = _named("get_task_id", lambda context: context.task_result.id, takes_context=True)


@task
async def noop_task_async(*args, **kwargs):
    """Take anything and do nothing, on an event loop."""


@task
def failing_task_value_error():
    """Raise the error whose text is looked for."""
    message = "This task failed due to ValueError"
    raise ValueError(message)


@task
def complex_exception():
    """Raise an error whose line of source is looked for in the traceback."""
    raise ValueError(ValueError("This task failed"))


@task
def exit_task():
    """Ask for the end of the process."""
    raise SystemExit(1)


@task(takes_context=True)
def test_context(context, attempt):
    """Compare which attempt this is."""
    if context.attempt != attempt:
        raise RuntimeError(context.attempt)
