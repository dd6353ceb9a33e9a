"""Runs, dead letters, executions and schedules in Django's admin."""

from duly.integrations.django.admin.runs import DeadLetterAdmin, ExecutionAdmin, RunAdmin
from duly.integrations.django.admin.schedules import ScheduleAdmin

__all__ = ["DeadLetterAdmin", "ExecutionAdmin", "RunAdmin", "ScheduleAdmin"]
