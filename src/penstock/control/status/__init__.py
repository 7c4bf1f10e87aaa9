"""`penstock status`, `lag` and `log`: the state of a pipeline, and its output."""
