"""A shop on FastAPI and SQLAlchemy whose orders are charged once."""
