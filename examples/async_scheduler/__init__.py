"""A FastAPI application that schedules its own work; run by a test with four processes."""
