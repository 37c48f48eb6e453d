"""The command line: parse, call one workflow, hand the result to the one output sink."""
