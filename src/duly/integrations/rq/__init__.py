"""RQ jobs that run once per key, and a carrier that lets RQ workers run duly tasks."""

from duly.integrations.extras import missing

try:
    from duly.integrations.rq.carrier import RQCarrier, carry
    from duly.integrations.rq.idempotency import idempotent
except ModuleNotFoundError as error:
    raise missing(error, "rq") from error

__all__ = ["RQCarrier", "carry", "idempotent"]
