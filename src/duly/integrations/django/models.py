"""Read-only models of runs and schedules for Django's admin. Only duly writes the rows."""

from typing import Any, ClassVar

from django.db import models

from duly.core.states import DEAD, State, stored_tags
from duly.integrations.django.fields import InstantField, RunIdField

_STATES = [(state.value, state.value) for state in State]


class ModelIsReadOnly(TypeError):
    """Code tried to write a row directly, which the engine would not notice."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a {what} cannot be written through this model; use the admin, or the runs, dead and "
            "schedules of task_backends[…].app"
        )


class ReadOnlyQuerySet(models.QuerySet):
    """Finds rows and refuses to change them."""

    def update(self, **_changes: Any) -> int:  # noqa: ANN401 - Django's
        """Raise ModelIsReadOnly."""
        raise ModelIsReadOnly(self.model._meta.verbose_name)  # noqa: SLF001 - Django's own way

    def delete(self) -> Any:  # noqa: ANN401 - Django's
        """Raise ModelIsReadOnly."""
        raise ModelIsReadOnly(self.model._meta.verbose_name)  # noqa: SLF001 - as above


class ReadOnlyManager(models.Manager):
    """All rows."""

    def get_queryset(self) -> Any:  # noqa: ANN401 - Django's
        """Return all rows."""
        return ReadOnlyQuerySet(self.model, using=self._db)


class _ReadOnlyModel(models.Model):
    objects = ReadOnlyManager()

    class Meta:
        abstract = True

    def save(self, *_args: Any, **_options: Any) -> None:  # noqa: ANN401 - Django's
        """Raise ModelIsReadOnly."""
        raise ModelIsReadOnly(self._meta.verbose_name)

    def delete(self, *_args: Any, **_options: Any) -> Any:  # noqa: ANN401 - Django's
        """Raise ModelIsReadOnly."""
        raise ModelIsReadOnly(self._meta.verbose_name)


class Run(_ReadOnlyModel):
    """A run in any state: waiting, ready, running or finished."""

    id = RunIdField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    state = models.TextField(choices=_STATES)
    cause = models.TextField(null=True)  # noqa: DJ001 - as in the view
    priority = models.IntegerField()
    generation = models.IntegerField()
    attempt = models.IntegerField()
    crashes = models.IntegerField()
    created_at = InstantField()
    due_at = InstantField()
    claimed_at = InstantField("started at", null=True)
    finished_at = InstantField(null=True)
    worker_id = models.TextField("worker", null=True)  # noqa: DJ001 - as above
    cancel_requested = models.BooleanField()
    parked = models.TextField(null=True)  # noqa: DJ001 - as above
    key = models.TextField(null=True)  # noqa: DJ001 - as above
    tags = models.TextField(null=True)  # noqa: DJ001 - as above
    arguments = models.TextField()
    result = models.TextField(null=True)  # noqa: DJ001 - as above
    error = models.TextField(null=True)  # noqa: DJ001 - as above
    traceback = models.TextField(null=True)  # noqa: DJ001 - as above

    class Meta:  # noqa: D106 - Django's
        managed = False
        db_table = "duly_every_run"
        ordering: ClassVar[list[str]] = ["-id"]
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"{self.task} {self.id}"

    @property
    def schedule(self) -> str | None:
        """The schedule that created the run, or None."""
        return stored_tags(self.tags).get("schedule")


class DeadLetterManager(ReadOnlyManager):
    """Runs that wait for an operator."""

    def get_queryset(self) -> Any:  # noqa: ANN401 - Django's
        """Return only dead letters."""
        return super().get_queryset().filter(state__in=sorted(DEAD))


class DeadLetter(Run):
    """A run that failed or was interrupted, kept with everything needed to run it again."""

    objects = DeadLetterManager()

    class Meta:  # noqa: D106 - Django's
        proxy = True
        ordering: ClassVar[list[str]] = ["-id"]
        default_permissions = ("view", "change")


class Tag(_ReadOnlyModel):
    """A tag of a run."""

    # The primary key has three columns. Django accepts the one that runs are found by.
    run_id = RunIdField(primary_key=True)
    name = models.TextField()
    value = models.TextField()

    class Meta:  # noqa: D106 - Django's
        managed = False
        db_table = "duly_tags"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


class ExecutionManager(ReadOnlyManager):
    """Runs that schedules created."""

    def get_queryset(self) -> Any:  # noqa: ANN401 - Django's
        """Return only runs of schedules."""
        tagged = Tag.objects.filter(run_id=models.OuterRef("pk"), name="schedule")
        return super().get_queryset().filter(models.Exists(tagged))


class Execution(Run):
    """A run that a schedule created."""

    objects = ExecutionManager()

    class Meta:  # noqa: D106 - Django's
        proxy = True
        ordering: ClassVar[list[str]] = ["-id"]
        default_permissions = ("view", "change")


class ScheduleManager(ReadOnlyManager):
    """Schedules that have not been removed."""

    def get_queryset(self) -> Any:  # noqa: ANN401 - Django's
        """Return only schedules that have not been removed."""
        return super().get_queryset().exclude(state="removed")


class Schedule(_ReadOnlyModel):
    """A schedule, defined in code or in the admin."""

    name = models.TextField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    priority = models.IntegerField()
    arguments = models.TextField()
    trigger = models.TextField()
    rules = models.TextField()
    state = models.TextField(
        choices=[(state, state) for state in ("active", "paused", "ended", "removed")]
    )
    reason = models.TextField(null=True)  # noqa: DJ001 - as in the table
    source = models.TextField(choices=[("code", "code"), ("runtime", "database")])
    place = models.TextField("defined by")
    next_at = InstantField(null=True)
    last_run_id = RunIdField(null=True)
    created_at = InstantField()
    updated_at = InstantField()

    objects = ScheduleManager()

    class Meta:  # noqa: D106 - Django's
        managed = False
        db_table = "duly_schedules"
        ordering: ClassVar[list[str]] = ["name"]

    def __str__(self) -> str:
        return self.name
