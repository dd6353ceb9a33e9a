"""The settings of the example, plus the backend that carries the tasks.

Addresses come from the environment, as in any deployment.
"""

import os

from shop.settings import *  # noqa: F403 - these are its settings
from shop.settings import INSTALLED_APPS, TASKS

CARRIED_BY = os.environ["SHOP_CARRIED_BY"]
PAYMENTS_PORT = int(os.environ["SHOP_PAYMENTS"])
BILLS_PORT = int(os.environ["SHOP_BILLS"])
GATE = os.environ["SHOP_GATE"]
ORDERS = int(os.environ["SHOP_ORDERS"])
INSTALLED_APPS += ["tests.integrations.django.carried"]

if CARRIED_BY == "db":
    INSTALLED_APPS += ["django_tasks_db"]
    TASKS["db"] = {"BACKEND": "django_tasks_db.DatabaseBackend"}

if CARRIED_BY == "celery":
    INSTALLED_APPS += ["django_tasks_fennel"]
    TASKS["celery"] = {"BACKEND": "django_tasks_fennel.CeleryBackend"}
    CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ["SHOP_BROKER"]
    # Lets Celery redeliver the messages of a killed pool child.
    CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = True
    CELERY_WORKER_PREFETCH_MULTIPLIER = 1
