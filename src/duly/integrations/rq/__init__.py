"""RQ jobs that run once per key, and a fleet of RQ workers that runs tasks of ours."""

from duly.integrations.rq.carrier import RQCarrier, carry
from duly.integrations.rq.idempotent import idempotent

__all__ = ["RQCarrier", "carry", "idempotent"]
