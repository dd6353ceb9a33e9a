"""Integrations of duly with web frameworks, Django and other task queues."""
