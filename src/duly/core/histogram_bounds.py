"""The upper bounds of run durations in charts, percentiles and histograms."""

BEYOND = 9_000_000_000_000
BOUNDS = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000),
    *(900_000, 3_600_000, 21_600_000, 86_400_000),
)
"""In milliseconds. The statements that count finished runs use the same bounds.

A longer duration is counted under `BEYOND`.
"""
