"""Use cases: read facts, plan purely, execute the steps; they yield events and print nothing."""
