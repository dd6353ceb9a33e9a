"""Which version of duly this is."""

VERSION = "0.1.0"
