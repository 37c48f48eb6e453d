"""The outside worlds, one per module, each behind a narrow protocol."""
