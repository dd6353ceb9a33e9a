"""The version of duly."""

VERSION = "0.1.0"
